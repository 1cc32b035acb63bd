"""What bad input gets: the right status, the dialect's error shape, and nothing sent."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from schemas import limits
from schemas.replies import StopReason
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
from tests.gateway_http import MODEL, serve


def body_bytes(path: str, fields: dict[str, object]) -> bytes:
    """Return a good body with some fields spoilt."""
    return json.dumps(body_of(path, **fields)).encode()


BAD_BODIES: list[tuple[str, bytes | dict[str, object], int, str]] = [
    ("invalid JSON", b'{"model": ', 400, "JSON"),
    ("no JSON at all", b"hello", 400, "JSON"),
    ("invalid UTF-8", b'{"model": "\xff\xfe"}', 400, "JSON"),
    ("lone surrogate", rb'{"model": "\ud800"}', 400, "JSON"),
    ("deep JSON", b'{"model":' + b"[" * 5_000 + b"]" * 5_000 + b"}", 400, "deep"),
    ("too deep JSON", b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", 400, "deep"),
    ("a list", b"[]", 400, ""),
    ("empty body", b"", 400, "JSON"),
    ("unknown model", {"model": "gpt-99"}, 404, MODEL),
    ("no model name", {"model": ""}, 404, MODEL),
    ("empty messages", {"messages": []}, 400, "messages"),
    ("unknown field", {"frobnicate": 1}, 400, "frobnicate"),
    ("max_tokens negative", {"max_tokens": -1}, 400, "max_tokens"),
    ("prompt too long", {"messages": [{"role": "user", "content": "x" * 5_000}]}, 400, "too long"),
]


@pytest.mark.parametrize("path", PATHS)
def test_bad_bodies_are_refused_in_the_dialect(path: str) -> None:
    """Each bad body gets its status, the dialect's shape, names the field, and sends nothing."""

    async def scenario() -> None:
        async with serve() as served, client(served) as http:
            headers = headers_of(path, served.key)
            for name, fields, status, named in BAD_BODIES:
                raw = fields if isinstance(fields, bytes) else body_bytes(path, fields)
                response = await http.post(path, content=raw, headers=headers)
                assert response.status_code == status, (name, response.text)
                assert named in check_shape(path, response), (name, response.text)
            assert served.platform.worker.seen == []

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS)
def test_keys_are_asked_for_first(path: str) -> None:
    """No key, a wrong key and a revoked key get 401 in the dialect; x-api-key is preferred."""

    async def scenario() -> None:
        async with serve() as served, client(served) as http:
            for key in (None, "sk-ms-wrong", "x" * 5_000):
                response = await http.post(path, content=b"{", headers=headers_of(path, key))
                assert response.status_code == 401
                check_shape(path, response)
            both = headers_of(path, "sk-ms-wrong") | {"x-api-key": served.key}
            good = await http.post(path, json=body_of(path), headers=both)
            assert good.status_code == 200
            org = "anthropic-organization-id" if path == ANTHROPIC else "openai-organization"
            assert good.headers[org] == "acme"

    asyncio.run(scenario())


def test_wrong_methods_and_unknown_paths_are_named() -> None:
    """405 with allow and 404, in the dialect that the path or the version header tells."""

    async def scenario() -> None:
        async with serve() as served, client(served) as http:
            response = await http.get(ANTHROPIC)
            assert response.status_code == 405 and response.headers["allow"] == "POST"
            check_shape(ANTHROPIC, response)
            assert (await http.put(OPENAI)).status_code == 405
            check_shape(OPENAI, await http.delete(OPENAI))
            for path in ("/v1/nothing", "/v1/messages/", "/v2/messages", "/v1/audio"):
                response = await http.post(path, headers=headers_of(ANTHROPIC, served.key))
                assert response.status_code == 404
                check_shape(ANTHROPIC, response)
            check_shape(OPENAI, await http.get("/v1/nothing"))

    asyncio.run(scenario())


def test_headers_that_mean_something_are_not_ignored() -> None:
    """Versions, keys, cursors and encodings are checked."""

    async def scenario() -> None:
        async with serve() as served, client(served) as http:

            async def post(path: str, headers: dict[str, str]) -> str:
                response = await http.post(path, json=body_of(path), headers=headers)
                assert response.status_code == 400
                return check_shape(path, response)

            key = {"x-api-key": served.key}
            assert await post(ANTHROPIC, key) == "anthropic-version: header is required"
            assert "1999" in await post(ANTHROPIC, key | {"anthropic-version": "1999-01-01"})
            for path in PATHS:
                good = headers_of(path, served.key)
                for bad in ("", '"', "a b", "k" * 256, '"a" "b"'):
                    assert "idempotency-key" in await post(path, good | {"idempotency-key": bad})
                keyed = good | {"idempotency-key": "k"}
                assert "last-event-id" in await post(path, keyed | {"last-event-id": "x"})
                assert "idempotency-key" in await post(path, good | {"last-event-id": "1-1"})
                resumable = {"millstream-resumable": "perhaps"}
                assert "true or false" in await post(path, good | resumable)
                assert "compressed" in await post(path, good | {"content-encoding": "br"})

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS)
def test_bodies_above_the_limit_are_refused(path: str) -> None:
    """413 by content-length and by counting a chunked body, read by a client that sends it all."""

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 65_536

    async def scenario() -> None:
        async with serve(body_bytes_max=limits.MIB) as served, client(served) as http:
            headers = headers_of(path, served.key)
            for content in (b" " * (limits.MIB + 1), chunks()):
                response = await http.post(path, content=content, headers=headers)
                assert response.status_code == 413
                check_shape(path, response)
            assert served.deps.bodies._held_bytes == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS)
def test_ten_megabytes_of_prompt_are_refused_quickly(path: str) -> None:
    """The length alone proves it too long: a 400 within a second, nobody else held up."""

    async def scenario() -> None:
        async with serve(say("hello", pause_s=0.01)) as served, client(served) as http:
            headers = headers_of(path, served.key)
            prompt = [{"role": "user", "content": "hello there " * 900_000}]
            raw = json.dumps(body_of(path, messages=prompt)).encode()
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            big = asyncio.create_task(http.post(path, content=raw, headers=headers))
            small = await http.post(path, json=body_of(path), headers=headers)
            response = await big
            assert loop.time() - began_s < 1.0
            assert small.status_code == 200 and response.status_code == 400
            assert "prompt is too long: at least" in check_shape(path, response)

    asyncio.run(scenario())


def test_max_tokens_beyond_the_window_are_clipped() -> None:
    """The event carries what the window leaves; each dialect names the reason its own way."""

    async def scenario() -> None:
        async with serve(say("abc", stop=StopReason.LENGTH)) as served, client(served) as http:
            stops = []
            for path in PATHS:
                response = await http.post(
                    path,
                    json=body_of(path, max_tokens=1_000_000),
                    headers=headers_of(path, served.key),
                )
                assert response.status_code == 200
                stops.append(response.json())
            assert stops[0]["stop_reason"] == "model_context_window_exceeded"
            assert stops[1]["choices"][0]["finish_reason"] == "length"
            for request in served.platform.worker.seen:
                assert request.header.clipped
                assert request.sampling.max_tokens + len(request.prompt_token_ids) == 4_096

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS)
def test_a_gateway_that_is_not_ready_says_come_back(path: str) -> None:
    """529 with retry-after while starting, before keys are known; never a refused connection."""

    async def scenario() -> None:
        async with serve() as served, client(served) as http:
            served.unready.append("the platform is starting")
            response = await http.post(path, json=body_of(path), headers=headers_of(path, "any"))
            assert response.status_code == 529
            assert 0 < int(response.headers["retry-after"]) <= 60
            check_shape(path, response)
            assert (await http.get("/ready")).status_code == 503
            assert (await http.get("/health")).status_code == 200
            served.unready.clear()
            served.platform.workers.clear()
            response = await http.post(
                path, json=body_of(path), headers=headers_of(path, served.key)
            )
            assert response.status_code == 529 and "retry-after" in response.headers

    asyncio.run(scenario())


@pytest.mark.parametrize("endless", [b"x" * 65_536, b"x: y\r\n" * 10_000])
def test_an_endless_head_is_cut(endless: bytes) -> None:
    """A head above its bound ends the connection, be it one header or many; others are served."""

    async def scenario() -> None:
        async with serve() as served, client(served) as http:
            port = int(served.url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\n")
            if endless.startswith(b"xx"):
                writer.write(b"x: ")
            async with asyncio.timeout(10):
                try:
                    for _ in range(40):
                        writer.write(endless)
                        await writer.drain()
                        await asyncio.sleep(0.01)
                    assert await reader.read() == b""
                except ConnectionError:
                    pass  # cut while we were still sending
            writer.close()
            for _ in range(3):  # kept alive: the bound is per request
                headers = headers_of(OPENAI, served.key)
                good = await http.post(OPENAI, json=body_of(OPENAI), headers=headers)
                assert good.status_code == 200

    asyncio.run(scenario())
