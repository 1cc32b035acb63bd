"""Streams over plain HTTP of which every event is kept, and the workers of a running platform.

For tests that disturb a platform while replies are open: what a client had at which moment, whether
its cursors go on without a step back, and who served what.
"""

import json
import os
import signal
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from infra.supervisor.state import ProcessEntry, read_state
from schemas.ids import find_request_id
from tests.gateway_calls import headers_of
from tests.gateway_streams import cursor_of, events_of, reply_id_of
from tests.integration.platform import Platform, eventually

PATHS = ("/v1/messages", "/v1/chat/completions")
_USAGE: dict[str, object] = {"stream_options": {"include_usage": True}}


@dataclass(slots=True, kw_only=True)
class WatchedStream:
    """One streamed reply and what came of it."""

    path: str
    body: dict[str, object]
    raw: bytes = b""
    arrivals_s: list[float] = field(default_factory=list)
    """When each piece came, on `time.perf_counter`."""

    async def follow(self, client: httpx.AsyncClient, key: str) -> None:
        """Send the request and read to the end of its stream; one that is cut fails the test."""
        try:
            await self._follow(client, key)
        except httpx.HTTPError as error:
            raise AssertionError(f"{error!r} after {self.raw[-400:]!r}") from error

    async def _follow(self, client: httpx.AsyncClient, key: str) -> None:
        usage = _USAGE if self.path == PATHS[1] else {}
        async with client.stream(
            "POST",
            self.path,
            json=self.body | usage | {"stream": True},
            headers=headers_of(self.path, key),
        ) as reply:
            assert reply.status_code == 200, await reply.aread()
            async for piece in reply.aiter_raw():
                self.raw += piece
                self.arrivals_s.append(time.perf_counter())

    @property
    def events(self) -> list[bytes]:
        """Every whole event so far."""
        return events_of(self.raw.rpartition(b"\n\n")[0])

    @property
    def request_id(self) -> str:
        """The id under which the log and the usage table know the reply."""
        return str(find_request_id(reply_id_of(self.events)))

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(_text_of(data) for data in self._data)

    @property
    def output_tokens(self) -> int:
        """What the finished stream says of its tokens."""
        usage = [data["usage"] for data in self._data if data.get("usage")][-1]
        return int(usage.get("output_tokens") or usage["completion_tokens"])

    def check_whole(self) -> None:
        """Check that it ended with its last event and that its cursors only ever go forward."""
        last = self.events[-1]
        assert b"message_stop" in last or b"[DONE]" in last, last
        cursors = [tuple(map(int, cursor_of(event).split("-"))) for event in self.events]
        assert cursors == sorted(set(cursors)), "a cursor came twice, or out of order"
        assert cursors[-1][0] == self.output_tokens, "the last cursor counts all tokens"

    @property
    def _data(self) -> list[dict[str, Any]]:
        lines = [event.split(b"data: ", 1)[1].splitlines()[0] for event in self.events]
        return [json.loads(line) for line in lines if line != b"[DONE]"]


def _text_of(data: dict[str, Any]) -> str:
    delta = data.get("delta", {})
    text = delta.get("text", "") if delta.get("type") == "text_delta" else ""
    return text + "".join(c["delta"].get("content") or "" for c in data.get("choices", []))


def http_of(platform: Platform, timeout_s: float = 60.0) -> httpx.AsyncClient:
    """Return a client of the public address with room for all streams."""
    bounds = httpx.Limits(max_connections=200)
    return httpx.AsyncClient(
        base_url=platform.url, timeout=timeout_s, verify=False, limits=bounds, trust_env=False
    )


def entry_of(platform: Platform, name: str) -> ProcessEntry:
    """Return a process as the supervisor's state file shows it, which costs no command."""
    state = read_state(platform.data / "state.json")
    assert state is not None, "it runs"
    return next(entry for entry in state.processes if entry.name == name)


def busiest_worker(platform: Platform, count: int = 2) -> str:
    """Return the worker whose engine has the most requests."""
    names = [f"worker-{number}" for number in range(count)]
    return max(names, key=lambda name: platform.metrics(name)["millstream_engine_running"])


def signal_process(platform: Platform, name: str, number: signal.Signals) -> int:
    """Signal a process; return the pid that it has."""
    pid = entry_of(platform, name).pid
    assert pid is not None, f"{name} runs"
    os.kill(pid, number)
    return pid


def wait_back(platform: Platform, name: str, old_pid: int, within_s: float) -> float:
    """Wait until a process is ready under another pid; return after how many seconds it was."""

    def back() -> bool:
        entry = entry_of(platform, name)
        return entry.ready and entry.pid not in (None, old_pid)

    return eventually(back, within_s, f"{name} is ready again")
