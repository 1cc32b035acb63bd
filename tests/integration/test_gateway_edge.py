"""What the edge does for every call: other origins, compression, large bodies in threads."""

import asyncio
import gzip
import json
import sys
import zlib
from types import FrameType

import httpx
import pytest

from schemas import limits
from schemas.replies import StopReason
from schemas.requests import RequestAccepted
from tests.gateway_calls import (
    ANTHROPIC,
    OPENAI,
    PATHS,
    body_of,
    check_shape,
    client,
    headers_of,
    say,
)
from tests.gateway_http import Served, ids_of, serve
from tests.gateway_platform import FakeWorker

APP = "https://app.example"
LOOP_CALLS_MORE_MAX = 4_000
"""More calls that a megabyte may cost the event loop's thread: parsed there it takes 300,000."""


def test_other_origins_are_allowed_as_configured() -> None:
    """A configured origin gets its preflight and may read answers and errors; others may not."""

    async def scenario() -> None:
        allowed = f"{APP}, http://localhost:3000"
        async with serve(cors_origins=allowed) as served, client(served) as http:
            asks = {
                "origin": APP,
                "access-control-request-method": "POST",
                "access-control-request-headers": "x-api-key,x-stainless-lang",
            }
            for path in PATHS:
                preflight = await http.options(path, headers=asks)
                assert preflight.status_code == 204 and preflight.content == b""
                assert preflight.headers["access-control-allow-origin"] == APP
                methods = preflight.headers["access-control-allow-methods"].split(", ")
                assert {"GET", "POST", "DELETE"} <= set(methods)
                assert "x-stainless-lang" in preflight.headers["access-control-allow-headers"]
                for key, status in ((served.key, 200), (None, 401)):
                    sent = headers_of(path, key) | {"origin": APP}
                    answer = await http.post(path, json=body_of(path), headers=sent)
                    assert answer.status_code == status
                    assert answer.headers["access-control-allow-origin"] == APP
                    assert "request-id" in answer.headers["access-control-expose-headers"]
                    assert "origin" in answer.headers["vary"]
                foreign = headers_of(path, served.key) | {"origin": "https://evil.example"}
                answer = await http.post(path, json=body_of(path), headers=foreign)
                assert "access-control-allow-origin" not in answer.headers
                refused = await http.options(path, headers=asks | {"origin": foreign["origin"]})
                assert refused.status_code == 405

    asyncio.run(scenario())


def test_no_origin_is_allowed_unless_configured() -> None:
    """By default no answer has a header of CORS; `*` allows every origin, without credentials."""

    async def scenario() -> None:
        for setting, expected in (("", None), ("*", "*")):
            async with (
                serve(cors_origins=setting) as served,
                client(served) as http,
            ):
                answer = await http.get("/v1/models", headers={"origin": APP})
                assert answer.headers.get("access-control-allow-origin") == expected
                assert "access-control-allow-credentials" not in answer.headers

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS)
def test_gzip_bodies_are_read(path: str) -> None:
    """A compressed body means what the plain one means, also to an idempotency key."""

    async def scenario() -> None:
        async with serve(say("hello")) as served, client(served) as http:
            plain = json.dumps(body_of(path)).encode()
            sent = headers_of(path, served.key) | {"idempotency-key": "k"}
            first = await http.post(path, content=plain, headers=sent)
            packed = sent | {"content-encoding": "gzip"}
            again = await http.post(path, content=gzip.compress(plain), headers=packed)
            assert first.status_code == again.status_code == 200
            assert again.headers["idempotent-replayed"] == "true"
            assert again.content == first.content

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS)
def test_bad_gzip_bodies_are_refused(path: str) -> None:
    """A bomb is 413 long before it is inflated whole; what is no gzip, or broken off, is 400."""
    plain = json.dumps(body_of(path)).encode()
    packed = gzip.compress(plain)
    bomb = gzip.compress(b" " * (64 * limits.MIB))
    raw_deflate = zlib.compress(plain)
    bad = [
        (plain, 400, "not valid gzip"),
        (raw_deflate, 400, "not valid gzip"),
        (packed[:-9], 400, "breaks off"),
        (packed[:-5] + b"?" + packed[-4:], 400, "not valid gzip"),
        (packed + b"more", 400, "goes on"),
        (packed + packed, 400, "goes on"),
        (b"", 400, "breaks off"),
        (bomb, 413, "larger"),
    ]

    async def scenario() -> None:
        async with serve(body_bytes_max=limits.MIB) as served, client(served) as http:
            assert len(bomb) < limits.MIB
            sent = headers_of(path, served.key) | {"content-encoding": "gzip"}
            for content, status, named in bad:
                answer = await http.post(path, content=content, headers=sent)
                assert answer.status_code == status, (named, answer.text)
                assert named in check_shape(path, answer)
            good = await http.post(path, content=packed, headers=sent)
            assert good.status_code == 200

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS)
def test_long_answers_are_compressed_for_those_who_ask(path: str) -> None:
    """Whole bodies of some length are, streams and short ones are not, and all say the same."""
    text = "The same words again. " * 150

    async def at_once(worker: FakeWorker, request: RequestAccepted) -> None:
        await worker.start(request)
        await worker.say(request, *ids_of(text), stop=StopReason.END)

    async def scenario() -> None:
        async with serve(at_once) as served, client(served) as http:
            body = body_of(path, max_tokens=4_000)
            answers = {}
            for wanted in ("gzip, deflate", "identity", "gzip;q=0", "*"):
                sent = headers_of(path, served.key) | {"accept-encoding": wanted}
                answer = await http.post(path, json=body, headers=sent)
                assert answer.headers["vary"] == "accept-encoding"
                answers[wanted] = answer
                assert text in answer.text
            assert answers["gzip, deflate"].headers["content-encoding"] == "gzip"
            assert int(answers["gzip, deflate"].headers["content-length"]) < 1_000
            assert answers["*"].headers["content-encoding"] == "gzip"
            for plain in ("identity", "gzip;q=0"):
                assert "content-encoding" not in answers[plain].headers
            stream = await http.post(
                path, json={**body, "stream": True}, headers=headers_of(path, served.key)
            )
            assert "content-encoding" not in stream.headers

    asyncio.run(scenario())


def test_a_large_body_is_worked_on_beside_the_event_loop() -> None:
    """Reading a megabyte costs the loop's thread hardly more calls than reading a line."""

    async def scenario() -> None:
        async with serve(context_tokens=limits.PROMPT_TOKENS_MAX) as served:
            turn = {"role": "user", "content": "tell me more"}
            many = [turn] * (limits.MIB // (len(json.dumps(turn)) + 2))
            for path in (f"{ANTHROPIC}/count_tokens", OPENAI):
                few_calls = await _loop_calls(served, path, [turn])
                many_calls = await _loop_calls(served, path, many)
                assert many_calls - few_calls <= LOOP_CALLS_MORE_MAX

    asyncio.run(scenario())


async def _loop_calls(served: Served, path: str, messages: list[dict[str, str]]) -> int:
    """Return how many calls the event loop's thread makes while a request is answered."""
    body: dict[str, object] = {"model": "m", "messages": messages}
    if path == OPENAI:
        body["max_tokens"] = 1
    raw, count = json.dumps(body).encode(), 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    def ask() -> httpx.Response:
        with httpx.Client(base_url=served.url, timeout=60, verify=False) as http:
            return http.post(path, content=raw, headers=headers_of(path, served.key))

    sys.setprofile(note)
    try:
        answer = await asyncio.to_thread(ask)
    finally:
        sys.setprofile(None)
    assert answer.status_code == 200, answer.text
    return count


def test_requests_sent_ahead_are_answered_one_after_the_other() -> None:
    """A client that sends its next request while a stream runs gets the rest of it, then that."""
    halves = asyncio.Event()

    async def in_halves(worker: FakeWorker, request: RequestAccepted) -> None:
        await worker.start(request)
        await worker.say(request, *ids_of("first"))
        await halves.wait()
        for letter in ids_of("then"):
            await worker.say(request, letter)
            await asyncio.sleep(0.01)
        await worker.say(request, stop=StopReason.END)

    async def scenario() -> bytes:
        async with serve(in_halves) as served:
            body = json.dumps({**body_of(OPENAI), "stream": True}).encode()
            fields = {**headers_of(OPENAI, served.key), "content-length": str(len(body))}
            lines = [f"POST {OPENAI} HTTP/1.1", "host: m", *map(": ".join, fields.items()), "", ""]
            port = int(served.url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write("\r\n".join(lines).encode() + body)
            async with asyncio.timeout(10):
                got = await reader.readuntil(b'"content":"t"')
                writer.write(b"GET /health HTTP/1.1\r\nhost: m\r\nconnection: close\r\n\r\n")
                await writer.drain()
                await asyncio.sleep(0.05)
                halves.set()
                got += await reader.read(-1) or b""
            writer.close()
        return got

    got = asyncio.run(scenario())
    stream, _, health = got.partition(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert b"error" not in stream
    assert all(b'"content":"%c"' % letter in stream for letter in b"firsthen")
    assert health.startswith(b"HTTP/1.1 200 OK") and health.endswith(b"healthy\n")
