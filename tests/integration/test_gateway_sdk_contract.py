"""What the official Python SDKs need of a server, each case once reported of an imitating one.

Sync and async alike: the SDKs have two code paths. What streams, tools and formats look like is
tested beside the assembler; here stand transport, retries, silence and whole conversations.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from anthropic import beta_tool

from schemas.replies import CloseReason, StopReason
from schemas.requests import RequestAccepted
from tests.gateway_calls import MESSAGES, client, headers_of, say
from tests.gateway_http import MODEL, Served, byte_tokenizer, ids_of, serve
from tests.gateway_platform import FakeWorker

TEXT = "Grüße, 世界"
CALLS = "\n".join(
    f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'
    for city in ("Paris", "Rome")
)
OPENAI_TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
BROKEN = (anthropic.APIError, openai.APIError, httpx2.TransportError)
"""What a stream that breaks off raises: Anthropic's SDK lets the transport's errors through."""


def asked(request: RequestAccepted) -> str:
    """Return the prompt of a request."""
    return byte_tokenizer().decode(list(request.prompt_token_ids))


async def tell(worker: FakeWorker, request: RequestAccepted, text: str) -> None:
    """Say a text, one byte per record, and end."""
    for token in ids_of(text):
        await worker.say(request, token)
    await worker.say(request, stop=StopReason.END)


async def call_tools_once(worker: FakeWorker, request: RequestAccepted) -> None:
    """Call a tool twice at once; say what it found when that stands in the prompt."""
    await worker.start(request)
    prompt = asked(request)
    done = "sunny in Paris" in prompt and "sunny in Rome" in prompt
    await tell(worker, request, "Both are sunny." if done else CALLS)


def in_thread(call: Callable[[], object]) -> Any:
    """Run a synchronous SDK's call beside the gateway."""
    return asyncio.to_thread(call)


@beta_tool
def get_weather(city: str) -> str:
    """Tell the weather of a city.

    Args:
        city: Name of the city.
    """
    return f"sunny in {city}"


def test_the_tool_runner_uses_what_the_tools_said() -> None:
    """With its default options: the first call asks for a thread, is refused, and is replayed."""

    async def scenario() -> None:
        async with serve(call_tools_once) as served:

            def run() -> object:
                with anthropic.Anthropic(base_url=served.url, api_key=served.key) as sdk:
                    return sdk.beta.messages.tool_runner(
                        model=MODEL,
                        max_tokens=200,
                        tools=[get_weather],
                        messages=[{"role": "user", "content": "How is it in Paris and Rome?"}],
                    ).until_done()

            final: Any = await in_thread(run)
            assert final.content[0].text == "Both are sunny."
            assert final.stop_reason == "end_turn"
            first, second = served.platform.worker.seen
            assert "How is it in Paris" in asked(first) and "How is it in Paris" in asked(second)
            refused = [line for line in served.log.lines if line["status"] == 400]
            assert refused, "the runner begins with a thread"

    asyncio.run(scenario())


def test_openai_streams_parallel_tools_with_usage() -> None:
    """The helper's final completion has both calls apart, ids and names once, and the usage."""

    async def scenario() -> None:
        async with serve(call_tools_once) as served, openai_of(served) as sdk:
            async with sdk.chat.completions.stream(
                model=MODEL,
                messages=MESSAGES,
                tools=OPENAI_TOOLS,
                stream_options={"include_usage": True},
            ) as stream:
                final = await stream.get_final_completion()
            calls = final.choices[0].message.tool_calls
            assert calls and [call.function.name for call in calls] == ["get_weather"] * 2
            assert [call.function.arguments.count("city") for call in calls] == [1, 1]
            assert len({call.id for call in calls}) == 2
            assert all(call.id.startswith("call_") and len(call.id) < 40 for call in calls)
            assert final.choices[0].finish_reason == "tool_calls"
            assert final.usage and final.usage.completion_tokens == len(ids_of(CALLS))

    asyncio.run(scenario())


def openai_of(served: Served, **more: Any) -> openai.AsyncOpenAI:
    """Return OpenAI's asynchronous SDK."""
    return openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=served.key, **more)


def anthropic_of(served: Served, **more: Any) -> anthropic.AsyncAnthropic:
    """Return Anthropic's asynchronous SDK."""
    return anthropic.AsyncAnthropic(base_url=served.url, api_key=served.key, **more)


async def begin_and_break(worker: FakeWorker, request: RequestAccepted) -> None:
    """Say two tokens, then be lost."""
    await worker.start(request)
    await worker.say(request, *ids_of("ab"))
    await asyncio.sleep(0.05)
    await worker.close(request, CloseReason.FAILED)


def test_a_reply_that_breaks_off_is_never_taken_as_whole() -> None:
    """Both SDKs, sync and async, streamed by helper and by hand: each raises, once."""

    async def scenario() -> None:
        async with serve(begin_and_break) as served:

            def anthropic_sync() -> object:
                sdk = anthropic.Anthropic(base_url=served.url, api_key=served.key)
                with (
                    sdk,
                    sdk.messages.stream(model=MODEL, max_tokens=9, messages=MESSAGES) as stream,
                ):
                    return stream.get_final_message()

            def openai_sync() -> object:
                with openai.OpenAI(base_url=f"{served.url}/v1", api_key=served.key) as sdk:
                    return list(
                        sdk.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
                    )

            for call in (anthropic_sync, openai_sync):
                with pytest.raises(BROKEN):
                    await in_thread(call)
            async with anthropic_of(served) as sdk:
                with pytest.raises(BROKEN):
                    events = await sdk.messages.create(
                        model=MODEL, max_tokens=9, messages=MESSAGES, stream=True
                    )
                    async for _ in events:
                        pass
            async with openai_of(served) as other:
                with pytest.raises(BROKEN):
                    async with other.chat.completions.stream(
                        model=MODEL, messages=MESSAGES
                    ) as stream:
                        await stream.get_final_completion()
            assert len(served.platform.worker.seen) == 4  # after a 200 nothing is sent again

    asyncio.run(scenario())


def test_a_failure_before_the_first_token_is_retried() -> None:
    """Lost before it began, a call is sent again by the SDK and answered, sync and async."""

    def failing_once() -> Callable[[FakeWorker, RequestAccepted], Any]:
        async def script(worker: FakeWorker, request: RequestAccepted) -> None:
            if len(worker.seen) % 2:
                await worker.close(request, CloseReason.LATE)
                return
            await worker.start(request)
            await tell(worker, request, TEXT)

        return script

    async def scenario() -> None:
        async with serve(failing_once()) as served:

            def anthropic_sync() -> str:
                with anthropic.Anthropic(base_url=served.url, api_key=served.key) as sdk:
                    message = sdk.messages.create(model=MODEL, max_tokens=50, messages=MESSAGES)
                    block = message.content[0]
                    assert block.type == "text"
                    return block.text

            assert await in_thread(anthropic_sync) == TEXT
            async with openai_of(served) as sdk:
                stream = await sdk.chat.completions.create(
                    model=MODEL, messages=MESSAGES, stream=True
                )
                text = [chunk.choices[0].delta.content or "" async for chunk in stream]
                assert "".join(text) == TEXT
            statuses = [line["status"] for line in served.log.lines]
            assert statuses == [529, 200, 529, 200]

    asyncio.run(scenario())


def test_silence_longer_than_the_clients_time_out_is_survived() -> None:
    """Comments and pings come often enough that no SDK's read times out, on either API."""

    async def slow(worker: FakeWorker, request: RequestAccepted) -> None:
        await worker.start(request)
        await asyncio.sleep(1.2)
        await worker.say(request, *ids_of("a"))
        await asyncio.sleep(1.2)
        await worker.say(request, *ids_of("b"), stop=StopReason.END)

    async def scenario() -> None:
        async with serve(slow, keepalive_ms=150) as served:
            async with anthropic_of(served, timeout=0.6, max_retries=0) as sdk:
                async with sdk.messages.stream(
                    model=MODEL, max_tokens=9, messages=MESSAGES
                ) as stream:
                    message = await stream.get_final_message()
                block = message.content[0]
                assert block.type == "text" and block.text == "ab"
            async with openai_of(served, timeout=0.6, max_retries=0) as other:
                chunks = await other.chat.completions.create(
                    model=MODEL, messages=MESSAGES, stream=True
                )
                text = [chunk.choices[0].delta.content or "" async for chunk in chunks]
                assert "".join(text) == "ab"

    asyncio.run(scenario())


def test_what_is_counted_is_what_is_billed() -> None:
    """count_tokens, without max_tokens, equals input_tokens of the same call: also with tools."""
    tools: Any = [{"name": "f", "input_schema": {"type": "object"}, "description": "Does it."}]
    conversation: Any = [
        {"role": "user", "content": [{"type": "text", "text": "How is it?"}]},
        {"role": "assistant", "content": "Let me"},
    ]

    async def scenario() -> None:
        async with serve(say("ok")) as served, anthropic_of(served) as sdk:
            for more in ({}, {"system": "Be brief."}, {"tools": tools}):
                body: Any = {"model": MODEL, "messages": conversation, **more}
                counted = await sdk.messages.count_tokens(**body)
                message = await sdk.messages.create(max_tokens=9, **body)
                assert counted.input_tokens == message.usage.input_tokens

    asyncio.run(scenario())


def test_transport_is_tolerant_where_clients_differ() -> None:
    """Both headers of keys, both versions, query strings, HEAD, odd model ids in paths."""

    async def scenario() -> None:
        async with serve(say("ok")) as served, client(served) as http:
            body = {"model": MODEL, "max_tokens": 9, "messages": MESSAGES}
            for version in ("2023-06-01", "2026-10-21"):
                for key in (
                    {"x-api-key": served.key},
                    {"authorization": f"Bearer {served.key}"},
                    {"x-api-key": served.key, "authorization": "Bearer other"},
                ):
                    answer = await http.post(
                        "/v1/messages?beta=true",
                        json=body,
                        headers=key | {"anthropic-version": version, "anthropic-beta": "a,b"},
                    )
                    assert answer.status_code == 200
            head = await http.head("/")
            assert head.status_code == 200 and head.content == b""
            for model in ("Qwen%2FQwen3:0.6b", "Qwen/Qwen3:0.6b"):
                unknown = await http.get(
                    f"/v1/models/{model}", headers=headers_of("/v1/models", served.key)
                )
                assert unknown.status_code == 404 and "Qwen/Qwen3:0.6b" in unknown.text

    asyncio.run(scenario())
