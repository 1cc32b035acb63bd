"""Two real gateways behind one socket: one generation per key, and streams that survive kill -9."""

import asyncio
import json
import os
import random
import signal
import time
import uuid
from dataclasses import dataclass, field

import httpx

from schemas.ids import find_request_id
from tests.gateway_calls import body_of, headers_of
from tests.gateway_streams import cursor_of, events_of, reply_id_of
from tests.integration.platform import MODEL, SOAK, Platform, eventually

STREAMS = 16
KILLS = 20 if SOAK else 2
TOKENS = 600
WITHIN_S = 20.0
PATHS = ("/v1/messages", "/v1/chat/completions")


def client(url: str) -> httpx.AsyncClient:
    """Return a client with room for all streams."""
    bounds = httpx.Limits(max_connections=200)
    return httpx.AsyncClient(base_url=url, timeout=30, verify=False, limits=bounds, trust_env=False)


def test_a_hundred_calls_with_one_key_on_two_gateways_are_one_generation(pair: Platform) -> None:
    """All bodies are equal, one row of usage appears, and the audit agrees."""

    async def scenario() -> list[httpx.Response]:
        path, key = PATHS[0], str(uuid.uuid4())
        sent = headers_of(path, pair.key) | {"idempotency-key": key}
        urls = pair.shown["endpoints"]["gateways"]
        assert len(urls) == 2
        async with client(urls[0]) as one, client(urls[1]) as other:
            return await asyncio.gather(
                *(
                    (one, other)[n % 2].post(path, json=body_of(path, model=MODEL), headers=sent)
                    for n in range(100)
                )
            )

    answers = asyncio.run(scenario())
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert sum("idempotent-replayed" not in answer.headers for answer in answers) == 1
    request_id = find_request_id(answers[0].json()["id"])
    # The platform may have been ready for a second only: its first insert takes longer.
    eventually(lambda: request_id in pair.usage_of([request_id]), 20.0, "its usage is stored")
    shown = [str(find_request_id(answer.headers["request-id"])) for answer in answers]
    assert set(pair.usage_of(shown)) <= {request_id}
    pair.check_audit()


@dataclass(slots=True, kw_only=True)
class Stream:
    """One stream that its client resumes until it has the end."""

    path: str
    key: str | None
    received: list[bytes] = field(default_factory=list)
    cuts: int = 0

    @property
    def complete(self) -> bool:
        """Whether the last event has come."""
        last = self.received[-1] if self.received else b""
        return b"message_stop" in last or b"[DONE]" in last

    async def follow(self, http: httpx.AsyncClient, api_key: str) -> None:
        """Send the request, then resume it until it is complete."""
        until_s = time.monotonic() + WITHIN_S
        while not self.complete:
            assert time.monotonic() < until_s, f"not complete after {self.cuts} cuts"
            raw = b""
            try:
                async with self._ask(http, api_key) as reply:
                    assert reply.status_code == 200, await reply.aread()
                    async for piece in reply.aiter_raw():
                        raw += piece
            except httpx.TransportError:
                self.cuts += 1
            whole = raw[: raw.rfind(b"\n\n") + 2]
            self.received += [event for event in events_of(whole) if b"\nid: " in b"\n" + event]

    def _ask(self, http: httpx.AsyncClient, api_key: str):  # type: ignore[no-untyped-def] # httpx's
        sent = headers_of(self.path, api_key) | {"accept": "text/event-stream"}
        sent |= {"idempotency-key": self.key} if self.key else {"millstream-resumable": "true"}
        if self.received:
            sent["last-event-id"] = cursor_of(self.received[-1])
            if not self.key:
                return http.stream("GET", f"{self.path}/{reply_id_of(self.received)}", headers=sent)
        body = body_of(self.path, model=MODEL, stream=True, max_tokens=TOKENS, ignore_eos=True)
        return http.stream("POST", self.path, json=body, headers=sent)


def test_streams_survive_the_kill_of_their_gateway(pair: Platform) -> None:
    """Keyed and resumable streams of both dialects add up to the undisturbed stream after kill -9
    of a gateway at a random moment; each is metered once."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def scenario(name: str) -> list[Stream]:
        streams = [
            Stream(path=PATHS[n % 2], key=str(uuid.uuid4()) if n % 4 < 2 else None)
            for n in range(STREAMS)
        ]
        pid = int((await asyncio.to_thread(pair.process, name))["pid"])
        async with client(pair.url) as http:
            running = [asyncio.create_task(s.follow(http, pair.key)) for s in streams]
            await asyncio.sleep(rng.uniform(0.5, 1.5))
            os.kill(pid, signal.SIGKILL)
            await asyncio.gather(*running)
            await asyncio.to_thread(pair.wait_back, name, pid, 60.0)
            for stream in streams:
                await _check_whole(http, pair.key, stream)
        return streams

    cuts = 0
    for number in range(KILLS):
        streams = asyncio.run(scenario(f"gateway-{number % 2}"))
        cuts += sum(stream.cuts for stream in streams)
        ids = [str(find_request_id(reply_id_of(stream.received))) for stream in streams]
        _wait_for_usage(pair, ids)
        assert {row[1] for row in pair.usage_of(ids).values()} == {TOKENS}
        pair.check_audit()
    print(f"{cuts} cuts over {KILLS} kills")
    assert cuts


def _wait_for_usage(pair: Platform, ids: list[str]) -> None:
    eventually(lambda: len(pair.usage_of(ids)) == len(ids), 5.0, "all are metered")


async def _check_whole(http: httpx.AsyncClient, api_key: str, stream: Stream) -> None:
    """Check the parts against the reply as the log has it, streamed and whole."""
    url = f"{stream.path}/{reply_id_of(stream.received)}"
    sent = headers_of(stream.path, api_key)
    again = await http.get(url, headers=sent | {"accept": "text/event-stream"})
    assert events_of(again.content) == stream.received
    whole = json.loads((await http.get(url, headers=sent)).content)
    assert whole["id"] == reply_id_of(stream.received)
