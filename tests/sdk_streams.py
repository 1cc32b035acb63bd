"""The official SDKs in front of bytes: what they make of a stream, in pieces, and of a body.

Each `Reader` is one SDK's way to read one dialect, sync and async. What it returns is the whole
message as plain data, without what a helper adds of its own, so that stream and body compare.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx2
import openai

from schemas.requests import Dialect

Pieces = Sequence[bytes]
_ASK: Any = [{"role": "user", "content": "hi"}]


class _Body(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A response body that comes in these pieces."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def transport(
    pieces: Pieces, kind: str = "text/event-stream; charset=utf-8"
) -> httpx2.MockTransport:
    """Answer every request with these pieces."""
    headers = {"content-type": kind}
    return httpx2.MockTransport(
        lambda request: httpx2.Response(200, headers=headers, stream=_Body(pieces))
    )


def anthropic_client(pieces: Pieces, kind: str = "text/event-stream") -> anthropic.Anthropic:
    """Return the SDK with these pieces behind it."""
    http = httpx2.Client(transport=transport(pieces, kind))
    return anthropic.Anthropic(
        api_key="k", base_url="http://millstream", http_client=http, max_retries=0
    )


def openai_client(pieces: Pieces, kind: str = "text/event-stream") -> openai.OpenAI:
    """Return the SDK with these pieces behind it."""
    http = httpx2.Client(transport=transport(pieces, kind))
    return openai.OpenAI(
        api_key="k", base_url="http://millstream/v1", http_client=http, max_retries=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """How an SDK reads one dialect."""

    stream: Callable[[Pieces], Any]
    stream_async: Callable[[Pieces], Any]
    body: Callable[[bytes], Any]


def _messages(pieces: Pieces) -> Any:
    with (
        anthropic_client(pieces) as client,
        client.messages.stream(model="m", max_tokens=9, messages=_ASK) as running,
    ):
        return _plain(running.get_final_message())


def _messages_async(pieces: Pieces) -> Any:
    async def read() -> Any:
        http = httpx2.AsyncClient(transport=transport(pieces))
        async with (
            anthropic.AsyncAnthropic(
                api_key="k", base_url="http://millstream", http_client=http, max_retries=0
            ) as client,
            client.messages.stream(model="m", max_tokens=9, messages=_ASK) as running,
        ):
            return _plain(await running.get_final_message())

    return asyncio.run(read())


def _message_body(body: bytes) -> Any:
    with anthropic_client([body], "application/json") as client:
        return _plain(client.messages.create(model="m", max_tokens=9, messages=_ASK))


def _chat(pieces: Pieces) -> Any:
    with (
        openai_client(pieces) as client,
        client.chat.completions.stream(model="m", messages=_ASK) as running,
    ):
        # Not the final completion: to ask for it raises where the reply was cut.
        return _chat_plain(running.until_done().current_completion_snapshot)


def _chat_async(pieces: Pieces) -> Any:
    async def read() -> Any:
        async with (
            _async_openai(pieces) as client,
            client.chat.completions.stream(model="m", messages=_ASK) as running,
        ):
            return _chat_plain((await running.until_done()).current_completion_snapshot)

    return asyncio.run(read())


def _chat_body(body: bytes) -> Any:
    with openai_client([body], "application/json") as client:
        return _chat_plain(client.chat.completions.create(model="m", messages=_ASK))


def _completions(pieces: Pieces) -> Any:
    with openai_client(pieces) as client:
        return _added_up(list(client.completions.create(model="m", prompt="hi", stream=True)))


def _completions_async(pieces: Pieces) -> Any:
    async def read() -> Any:
        async with _async_openai(pieces) as client:
            running = await client.completions.create(model="m", prompt="hi", stream=True)
            return _added_up([chunk async for chunk in running])

    return asyncio.run(read())


def _completion_body(body: bytes) -> Any:
    with openai_client([body], "application/json") as client:
        return client.completions.create(model="m", prompt="hi").to_dict()


def _responses(pieces: Pieces) -> Any:
    with (
        openai_client(pieces) as client,
        client.responses.stream(model="m", input="hi") as running,
    ):
        return _response_of(list(running))


def _responses_async(pieces: Pieces) -> Any:
    async def read() -> Any:
        async with (
            _async_openai(pieces) as client,
            client.responses.stream(model="m", input="hi") as running,
        ):
            return _response_of([event async for event in running])

    return asyncio.run(read())


def _response_body(body: bytes) -> Any:
    with openai_client([body], "application/json") as client:
        return client.responses.create(model="m", input="hi").to_dict()


READERS = {
    Dialect.ANTHROPIC: Reader(stream=_messages, stream_async=_messages_async, body=_message_body),
    Dialect.OPENAI: Reader(stream=_chat, stream_async=_chat_async, body=_chat_body),
    Dialect.COMPLETIONS: Reader(
        stream=_completions, stream_async=_completions_async, body=_completion_body
    ),
    Dialect.RESPONSES: Reader(
        stream=_responses, stream_async=_responses_async, body=_response_body
    ),
}
"""By dialect."""


def _async_openai(pieces: Pieces) -> openai.AsyncOpenAI:
    http = httpx2.AsyncClient(transport=transport(pieces))
    return openai.AsyncOpenAI(
        api_key="k", base_url="http://millstream/v1", http_client=http, max_retries=0
    )


def _plain(message: Any) -> Any:
    return message.model_dump(exclude={"content": {"__all__": {"parsed_output"}}})


def _chat_plain(completion: Any) -> Any:
    """Return a completion without what the helper parsed or numbered, and what is null."""
    plain = completion.to_dict()
    plain.pop("object", None)
    for choice in plain["choices"]:
        message = choice["message"]
        for call in message.get("tool_calls") or ():
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
        empty = {"parsed"} | {name for name in message if message[name] is None}
        choice["message"] = {name: message[name] for name in message if name not in empty}
        choice["logprobs"] = choice.get("logprobs")
    return plain


def _added_up(chunks: Sequence[Any]) -> Any:
    """Return what the chunks of a text completion add up to; the SDK has no helper for it."""
    whole = chunks[-1].to_dict() | {"choices": []}
    choices: dict[int, Any] = {}
    for chunk in chunks:
        for part in chunk.to_dict()["choices"]:
            index, logprobs = part["index"], part["logprobs"]
            so_far = choices.setdefault(index, part | {"text": "", "logprobs": None})
            so_far["text"] += part["text"]
            so_far["finish_reason"] = part["finish_reason"]
            if logprobs and so_far["logprobs"] is None:
                so_far["logprobs"] = logprobs
            elif logprobs:
                for name, values in logprobs.items():
                    so_far["logprobs"][name] = so_far["logprobs"][name] + values
    return whole | {"choices": [choices[index] for index in sorted(choices)]}


def _response_of(events: Sequence[Any]) -> Any:
    """Return the response of the last event, as plain as the body's."""
    numbers = [event.sequence_number for event in events if hasattr(event, "sequence_number")]
    assert numbers == list(range(len(numbers))), "events are numbered one after the other"
    plain = events[-1].response.to_dict()
    for item in plain["output"]:
        item.pop("parsed_arguments", None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    return plain
