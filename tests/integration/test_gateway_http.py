"""The gateway over real HTTP: both official SDKs, bad input, disconnects, failures on the wire.

The log is the memory one and the worker a script; everything in front of them is the product.
"""

import asyncio
import itertools
import json
from typing import Any

import anthropic
import httpx
import openai
import pytest

from schemas import limits
from schemas.ids import find_request_id, read_reply_id
from schemas.replies import CloseReason, StopReason
from schemas.requests import RequestAccepted
from tests.gateway_calls import (
    ANTHROPIC,
    MESSAGES,
    OPENAI,
    PATHS,
    body_of,
    check_shape,
    client,
    fail,
    headers_of,
    say,
    say_then_fail,
    say_then_hang,
)
from tests.gateway_http import MODEL, Served, ids_of, serve
from tests.gateway_platform import FakeWorker, Script, answer_hello, stay_silent, until


def anthropic_sdk(served: Served) -> anthropic.AsyncAnthropic:
    """Return Anthropic's SDK as a user would make it."""
    return anthropic.AsyncAnthropic(base_url=served.url, api_key=served.key, max_retries=0)


def openai_sdk(served: Served) -> openai.AsyncOpenAI:
    """Return OpenAI's SDK as a user would make it."""
    return openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=served.key, max_retries=0)


def test_anthropic_sdk_streams_and_reads_whole() -> None:
    """Both forms give the same text, usage and stop reason through the official SDK."""

    async def scenario() -> None:
        async with serve(say("Grüße, 世界")) as served, anthropic_sdk(served) as sdk:
            whole = await sdk.messages.create(model=MODEL, max_tokens=50, messages=MESSAGES)
            async with sdk.messages.stream(
                model=MODEL,
                max_tokens=50,
                messages=MESSAGES,
            ) as stream:
                final = await stream.get_final_message()
            for message in (whole, final):
                block = message.content[0]
                assert block.type == "text" and block.text == "Grüße, 世界"
                assert message.stop_reason == "end_turn"
                assert message.usage.input_tokens > 0 and message.usage.output_tokens == 16 - 1
            assert whole._request_id and whole._request_id.startswith("req_")
            assert find_request_id(whole.id) == find_request_id(whole._request_id)
            read_reply_id(final.id, "acme", "default", served.deps.locator_key)

    asyncio.run(scenario())


def test_openai_sdk_streams_and_reads_whole() -> None:
    """Both forms give the same text, usage and finish reason through the official SDK."""

    async def scenario() -> None:
        async with serve(say("Grüße, 世界")) as served, openai_sdk(served) as sdk:
            whole = await sdk.chat.completions.create(
                model=MODEL,
                messages=MESSAGES,
            )
            assert whole.choices[0].message.content == "Grüße, 世界"
            assert whole.choices[0].finish_reason == "stop"
            stream = await sdk.chat.completions.create(
                model=MODEL,
                messages=MESSAGES,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            assert text == "Grüße, 世界"
            assert chunks[-1].usage == whole.usage and whole.usage is not None
            assert whole.usage.completion_tokens == 15

    asyncio.run(scenario())


def test_a_reply_that_fails_mid_stream_raises_in_both_sdks() -> None:
    """After the 200 an error event comes, then the body is aborted; no SDK takes it as complete."""

    async def scenario() -> None:
        async with serve(say_then_fail) as served:
            async with anthropic_sdk(served) as sdk:
                with pytest.raises(anthropic.APIStatusError) as caught:
                    async with sdk.messages.stream(
                        model=MODEL,
                        max_tokens=50,
                        messages=MESSAGES,
                    ) as stream:
                        await stream.get_final_message()
                assert caught.value.status_code == 200 and caught.value.type == "api_error"
            async with openai_sdk(served) as other:
                with pytest.raises(openai.APIError):
                    chunks = await other.chat.completions.create(
                        model=MODEL,
                        messages=MESSAGES,
                        stream=True,
                    )
                    async for _ in chunks:
                        pass

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS)
def test_a_failed_stream_ends_without_the_final_chunk(path: str) -> None:
    """On the wire: an error event last, then the connection closes with no `0` chunk."""

    async def scenario() -> None:
        async with serve(say_then_fail) as served, client(served) as http:
            received = b""
            with pytest.raises(httpx.RemoteProtocolError):
                async with http.stream(
                    "POST",
                    path,
                    json=body_of(path, stream=True),
                    headers=headers_of(path, served.key),
                ) as response:
                    assert response.status_code == 200
                    async for piece in response.aiter_raw():
                        received += piece
            last = received.strip().split(b"\n\n")[-1]
            error = json.loads(last.split(b"data: ")[-1])
            assert error["error"]["message"] and b"[DONE]" not in received
            assert b"message_stop" not in received

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("script", "times", "status"),
    [
        (fail, {}, 500),
        (stay_silent, {"deadline_ms": 100}, 504),
        (stay_silent, {"admit_within_ms": -limits.LATE_MARGIN_MS + 50}, 529),
    ],
)
def test_failures_before_the_first_token_are_real_statuses(
    script: Script, times: dict[str, Any], status: int
) -> None:
    """Failed 500, deadline 504, late 529 with retry-after, in the dialect's shape."""

    async def scenario() -> None:
        async with serve(script, **times) as served, client(served) as http:
            for path, stream in itertools.product(PATHS, (True, False)):
                response = await http.post(
                    path, json=body_of(path, stream=stream), headers=headers_of(path, served.key)
                )
                assert response.status_code == status
                assert ("retry-after" in response.headers) == (status == 529)
                check_shape(path, response)

    asyncio.run(scenario())


@pytest.mark.parametrize(("stream", "script"), [(False, say_then_hang), (True, stay_silent)])
@pytest.mark.parametrize("keyed", [False, True])
def test_a_reply_cut_by_a_drain_is_one_to_retry(stream: bool, script: Script, keyed: bool) -> None:
    """Before its first byte: 529 with retry-after, in the dialect's shape, with and without key."""

    async def scenario() -> None:
        async with serve(script) as served, client(served) as http:
            for path in PATHS:
                body, headers = body_of(path, stream=stream), headers_of(path, served.key)
                headers |= {"idempotency-key": path} if keyed else {}
                call = asyncio.create_task(http.post(path, json=body, headers=headers))
                await until(lambda: served.platform.submission.open_count == 1)
                await asyncio.sleep(0.1)
                served.platform.submission.close_all("this gateway is shutting down")
                response = await call
                assert response.status_code == 529, response.text
                assert response.headers["retry-after"] == str(limits.RETRY_AFTER_S)
                check_shape(path, response)
                assert "overloaded" in response.text and "shutting down" in response.text

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("script", [stay_silent, say_then_hang])
def test_a_client_that_leaves_closes_its_reply(path: str, stream: bool, script: Script) -> None:
    """Before the first token, mid-stream and while waiting for a whole body alike: cancelled."""

    async def scenario() -> None:
        async with serve(script) as served:
            async with client(served) as http:
                call = asyncio.create_task(
                    http.post(
                        path,
                        json=body_of(path, stream=stream),
                        headers=headers_of(path, served.key),
                    )
                )
                await until(lambda: bool(served.platform.worker.seen))
                await asyncio.sleep(0.1)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
            await until(lambda: bool(served.platform.worker.closes), timeout_s=1)
            (closed,) = served.platform.worker.closes
            assert closed.reason is CloseReason.CANCELLED
            await until(lambda: served.platform.submission.open_count == 0, timeout_s=1)
            await until(lambda: bool(served.log.lines), timeout_s=1)
            assert served.log.lines[-1]["reason"] == "gone"

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS)
def test_a_silent_stream_is_kept_alive(path: str) -> None:
    """Comments before the first token, the dialect's own keep-alives after it, at a steady pace."""

    async def slow(worker: FakeWorker, request: RequestAccepted) -> None:
        await worker.start(request)
        await asyncio.sleep(0.35)
        await worker.say(request, *ids_of("a"))
        await asyncio.sleep(0.35)
        await worker.say(request, *ids_of("b"), stop=StopReason.END)

    async def scenario() -> None:
        async with serve(slow, keepalive_ms=100) as served, client(served) as http:
            response = await http.post(
                path, json=body_of(path, stream=True), headers=headers_of(path, served.key)
            )
            before, _, after = response.text.partition('"a"')
            assert 2 <= before.count(": keepalive") <= 4
            pings = after.count("event: ping") if path == ANTHROPIC else after.count(": keepalive")
            assert 2 <= pings <= 4
            assert "message_stop" in after or "[DONE]" in after

    asyncio.run(scenario())


def test_a_failure_after_keepalives_is_an_error_event() -> None:
    """Once comments committed the 200, a deadline shows as an error event and an aborted body."""

    async def scenario() -> None:
        async with (
            serve(stay_silent, keepalive_ms=50, deadline_ms=200) as served,
            openai_sdk(served) as sdk,
        ):
            with pytest.raises(openai.APIError, match="deadline"):
                async for _ in await sdk.chat.completions.create(
                    model=MODEL,
                    messages=MESSAGES,
                    stream=True,
                ):
                    pass

    asyncio.run(scenario())


def test_a_client_that_does_not_read_is_cut() -> None:
    """Writes blocked for longer than the bound end the connection and close the reply."""
    text = "x" * 2_000

    async def flood(worker: FakeWorker, request: RequestAccepted) -> None:
        await worker.start(request)
        for _ in range(200):
            await worker.say(request, *ids_of(text))
            await asyncio.sleep(0.002)

    async def scenario() -> None:
        async with serve(flood, slow_client_ms=200, send_buffer_bytes=8_192) as served:
            port = int(served.url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_024)
            raw = json.dumps(body_of(OPENAI, stream=True)).encode()
            head = (
                f"POST {OPENAI} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {served.key}\r\n"
                f"content-length: {len(raw)}\r\n\r\n"
            )
            writer.write(head.encode() + raw)
            assert (await reader.read(12)).startswith(b"HTTP/1.1 200")
            await until(lambda: bool(served.platform.worker.closes), timeout_s=10)
            assert served.platform.worker.closes[0].reason is CloseReason.CANCELLED
            assert b"clients_too_slow_total 1.0" in served.deps.metrics.expose()
            last = b""
            try:
                while piece := await reader.read(65_536):
                    last = piece
            except ConnectionError:
                pass  # a reset is as good a cut as an end
            assert not last.endswith(b"0\r\n\r\n")
            writer.close()

    asyncio.run(scenario())


def test_a_stream_over_http_1_0_is_its_events_alone() -> None:
    """Such a client knows no chunks: sizes between the events would be part of them."""

    async def scenario() -> bytes:
        async with serve() as served:
            reader, writer = await asyncio.open_connection(*served.url[7:].split(":"))
            raw = json.dumps(body_of(OPENAI, stream=True)).encode()
            head = (
                f"POST {OPENAI} HTTP/1.0\r\nauthorization: Bearer {served.key}\r\n"
                f"content-length: {len(raw)}\r\n\r\n"
            )
            writer.write(head.encode() + raw)
            answer = await reader.read()
            writer.close()
            return answer

    head, _, body = asyncio.run(scenario()).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    events = body.removesuffix(b"\n\n").split(b"\n\n")
    assert events[-1].endswith(b"\ndata: [DONE]") and len(events) > 2
    assert all(event.startswith(b"id: ") and b"\r" not in event for event in events)


def test_both_sdks_list_and_retrieve_models() -> None:
    """One shape serves both; an unknown model's 404 lists the right ids."""

    async def scenario() -> None:
        async with serve() as served:
            async with anthropic_sdk(served) as sdk:
                assert [m.id async for m in sdk.models.list()] == [MODEL]
                assert (await sdk.models.retrieve(MODEL)).id == MODEL
                counted = await sdk.messages.count_tokens(
                    model=MODEL,
                    messages=MESSAGES,
                )
                whole = await sdk.messages.create(model=MODEL, max_tokens=9, messages=MESSAGES)
                assert counted.input_tokens == whole.usage.input_tokens
            async with openai_sdk(served) as other:
                assert [m.id async for m in other.models.list()] == [MODEL]
                with pytest.raises(openai.NotFoundError, match=f"serves: {MODEL}"):
                    await other.models.retrieve("org/other:1")

    asyncio.run(scenario())


def test_own_paths_answer() -> None:
    """Root, health, readiness, metrics and the doubled prefix answer as documented."""

    async def scenario() -> None:
        async with serve() as served, client(served) as http:
            for path in ("/", "/health", "/ready", "/metrics"):
                response = await http.get(path)
                assert response.status_code == 200 and response.headers["request-id"]
                assert (await http.head(path)).status_code == 200
            doubled = await http.post(
                f"/v1{ANTHROPIC}?beta=true",
                json=body_of(ANTHROPIC),
                headers=headers_of(ANTHROPIC, served.key),
            )
            assert doubled.status_code == 200 and doubled.json()["type"] == "message"
            totals = "/admin/v1/usage-totals"
            assert (await http.get(totals, headers={"x-api-key": served.key})).status_code == 403
            admin = await http.get(totals, headers={"x-api-key": served.admin_key})
            assert admin.json() == {"data": []}

    asyncio.run(scenario())


def test_each_call_writes_one_line() -> None:
    """The line names the request (as its client knows it, too), org, tokens, end; no secret."""

    async def scenario() -> None:
        async with serve(answer_hello) as served, client(served) as http:
            headers = headers_of(OPENAI, served.key)
            answer = await http.post(OPENAI, json=body_of(OPENAI), headers=headers)
            await until(lambda: bool(served.log.lines))
            (line,) = served.log.lines
            (request,) = served.platform.worker.seen
            assert line["request_id"] == request.request_id and line["org"] == "acme"
            assert line["shown_as"] == answer.headers["x-request-id"]
            assert line["status"] == 200 and line["output_tokens"] == 3 and line["reason"] == "end"
            assert line["input_tokens"] == len(request.prompt_token_ids)
            assert served.key not in repr(line)

    asyncio.run(scenario())
