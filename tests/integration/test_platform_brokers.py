"""Three embedded brokers: the death of one costs a pause, of two a clear 503, and no record."""

import asyncio
import itertools
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.integration.load import Load, sdks
from tests.integration.platform import MODEL, SOAK, Platform, eventually

BROKERS = ("kafka-0", "kafka-1", "kafka-2")
CLIENTS = 16 if SOAK else 8
PAUSE_MAX_S = 3.0
"""The longest that any client may hear nothing, whichever broker dies."""
BACK_WITHIN_S = 60.0
BEFORE_S, AFTER_S = 1.5, 4.0


@pytest.fixture(scope="module")
def trio() -> Iterator[Platform]:
    """Yield a running platform with three brokers, two gateways and two workers."""
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        settings = {
            "MILLSTREAM_BROKERS": "3",
            "MILLSTREAM_GATEWAYS": "2",
            "MILLSTREAM_WORKERS": "2",
            "MILLSTREAM_DEADLINE_MS": "60000",
        }
        platform = Platform(Path(folder) / "trio", "scripted", settings)
        try:
            platform.up(within_s=180)
            yield platform
        finally:
            platform.end()


@dataclass(slots=True)
class Listener:
    """Streams one reply after the other and notes when it heard anything."""

    url: str
    key: str
    heard_s: list[float] = field(default_factory=list)
    ended: int = 0
    failures: list[str] = field(default_factory=list)
    stopping: bool = False

    async def run(self) -> None:
        """Listen until told to stop."""
        headers = {"x-api-key": self.key, "anthropic-version": "2023-06-01"}
        async with httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=30, trust_env=False
        ) as client:
            self.heard_s.append(time.monotonic())
            while not self.stopping:
                await self._stream(client)

    async def _stream(self, client: httpx.AsyncClient) -> None:
        body = {
            "model": MODEL,
            "max_tokens": 150,
            "stream": True,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": f"Go on, {self.ended}."}],
        }
        last = b""
        try:
            async with client.stream("POST", "/v1/messages", json=body) as answer:
                if answer.status_code != 200:
                    self.failures.append(f"{answer.status_code} {(await answer.aread())!r}")
                    return
                async for chunk in answer.aiter_raw():
                    self.heard_s.append(time.monotonic())
                    last = (last + chunk)[-64:]
        except httpx.HTTPError as error:
            self.failures.append(repr(error))
            return
        if b"message_stop" in last:
            self.ended += 1
        else:
            self.failures.append(f"ended with {last!r}")

    @property
    def pause_s(self) -> float:
        """The longest time between two things heard."""
        return max(after - before for before, after in itertools.pairwise(self.heard_s))


@pytest.mark.parametrize("name", BROKERS if SOAK else BROKERS[:1])
def test_the_death_of_any_broker_is_a_pause(trio: Platform, name: str) -> None:
    """kill -9 of a broker under load: no request fails, nobody waits longer than the bound, every
    reply is metered once, and the audit agrees."""
    outcome = asyncio.run(_kill_under_load(trio, name))
    pauses_s = sorted(listener.pause_s for listener in outcome.listeners)
    print(f"{name}: back after {outcome.back_after_s:.1f} s; pauses {pauses_s}")
    assert [failure for one in outcome.listeners for failure in one.failures] == []
    assert outcome.load.failed == []
    assert sum(one.ended for one in outcome.listeners) > CLIENTS
    assert pauses_s[-1] <= PAUSE_MAX_S
    _check_metered(trio, outcome.load)
    trio.check_audit()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What clients saw over one kill."""

    listeners: list[Listener]
    load: Load
    back_after_s: float


async def _kill_under_load(platform: Platform, name: str) -> Outcome:
    listeners = [Listener(url=platform.url, key=platform.key) for _ in range(CLIENTS)]
    async with sdks(platform.url, platform.key) as clients:
        load = Load(clients)
        running = [
            *(asyncio.create_task(listener.run()) for listener in listeners),
            *(asyncio.create_task(load.send_for_ever()) for _ in range(4)),
        ]
        await asyncio.sleep(BEFORE_S)
        killed = await asyncio.to_thread(platform.kill, name)
        back_after_s = await asyncio.to_thread(platform.wait_back, name, killed, BACK_WITHIN_S)
        await asyncio.sleep(AFTER_S)
        load.stop()
        for listener in listeners:
            listener.stopping = True
        await asyncio.gather(*running)
    return Outcome(listeners=listeners, load=load, back_after_s=back_after_s)


def _check_metered(platform: Platform, load: Load) -> None:
    """Check that every finished reply has its one row with the tokens that the client was told."""
    told = {
        reply.request_id: (reply.input_tokens, reply.output_tokens, None) for reply in load.finished
    }
    eventually(lambda: platform.usage_of(list(told)) == told, 20.0, "every finished reply's row")
