"""Prompt caching on the real log, through both official SDKs: one count in every dialect, equal
bills, and nothing shared between orgs."""

import asyncio
import uuid
from typing import Any

import anthropic
import openai

from schemas.ids import find_request_id
from tests.integration.load import Sdks, sdks
from tests.integration.platform import MODEL, Platform, eventually

TOKENS = 5
Told = tuple[int, int, int]
"""Tokens of the whole prompt, how many of them were cached, output tokens."""


def test_a_prompt_sent_again_is_told_and_billed_alike_in_every_dialect(platform: Platform) -> None:
    """All answers but the first show the same cached part, streamed or whole, and usage has what
    they showed; another org's first one shows none, not even of the template's first words. The
    prompt's tokens are always those that count_tokens tells."""
    prompt = f"{uuid.uuid4()} " + "and so it goes " * 60
    told: dict[str, Told] = {}

    async def ask_all(key: str, calls: list[str]) -> list[Told]:
        async with sdks(platform.url, key) as clients:
            counted = await clients.anthropic.messages.count_tokens(
                model=MODEL, messages=_turns(prompt)
            )
            answers = [await _CALLS[name](clients, prompt) for name in calls]
        assert {answer[0] for _, answer in answers} == {counted.input_tokens}
        told.update(answers)
        return [answer for _, answer in answers]

    first, *later = asyncio.run(ask_all(platform.key, ["messages", *_CALLS]))
    foreign, again = asyncio.run(ask_all(platform.make_key("initech")[1], ["chat", "messages"]))
    assert foreign[1] == 0
    assert first[1] < later[0][1] < later[0][0]
    assert {*later, again} == {later[0]} and first[::2] == foreign[::2] == again[::2]

    eventually(lambda: _rows(platform, list(told)) == told, 10.0, f"usage shows {told}")
    platform.check_audit()


def test_a_prompt_is_cached_ahead_of_its_use(platform: Platform) -> None:
    """`max_tokens: 0` answers with nothing, bills the prompt alone, and the next one finds it."""
    prompt = f"{uuid.uuid4()} " + "and so it goes " * 60

    async def ask() -> tuple[anthropic.types.Message, Told]:
        async with sdks(platform.url, platform.key) as clients:
            ahead = await clients.anthropic.messages.create(
                model=MODEL, max_tokens=0, messages=_turns(prompt)
            )
            return ahead, (await _messages(clients, prompt))[1]

    ahead, used = asyncio.run(ask())
    assert ahead.content == [] and ahead.stop_reason == "max_tokens"
    name, told = _of_message(ahead)
    assert (told[0], told[2]) == (used[0], 0) and told[1] < used[1]
    eventually(lambda: _rows(platform, [name]) == {name: told}, 10.0, f"usage shows {told}")
    platform.check_audit()


def _rows(platform: Platform, ids: list[str]) -> dict[str, Told]:
    with platform.analyst() as client:
        found = client.query(
            "SELECT request_id, input_tokens, cached_tokens, output_tokens FROM usage "
            "WHERE request_id IN {ids:Array(String)}",
            parameters={"ids": ids},
        )
        return {name: (whole, cached, made) for name, whole, cached, made in found.result_rows}


def _of_message(message: anthropic.types.Message) -> tuple[str, Told]:
    usage = message.usage
    cached = usage.cache_read_input_tokens
    assert cached is not None and usage.cache_creation_input_tokens == 0
    name = find_request_id(message.id)
    return name, (usage.input_tokens + cached, cached, usage.output_tokens)


async def _messages(clients: Sdks, prompt: str) -> tuple[str, Told]:
    return _of_message(
        await clients.anthropic.messages.create(
            model=MODEL, max_tokens=TOKENS, messages=_turns(prompt), extra_body=_FORCED
        )
    )


async def _messages_streamed(clients: Sdks, prompt: str) -> tuple[str, Told]:
    async with clients.anthropic.messages.stream(
        model=MODEL, max_tokens=TOKENS, messages=_turns(prompt), extra_body=_FORCED
    ) as stream:
        opened: Any = await anext(aiter(stream))
        message = await stream.get_final_message()
    assert opened.message.usage.cache_read_input_tokens == message.usage.cache_read_input_tokens
    return _of_message(message)


def _of_completion(name: str, usage: openai.types.CompletionUsage | None) -> tuple[str, Told]:
    assert usage is not None and usage.prompt_tokens_details is not None
    cached = usage.prompt_tokens_details.cached_tokens or 0
    return find_request_id(name), (usage.prompt_tokens, cached, usage.completion_tokens)


async def _chat(clients: Sdks, prompt: str) -> tuple[str, Told]:
    whole = await clients.openai.chat.completions.create(
        model=MODEL, max_tokens=TOKENS, messages=_turns(prompt), extra_body=_FORCED
    )
    return _of_completion(whole.id, whole.usage)


async def _chat_streamed(clients: Sdks, prompt: str) -> tuple[str, Told]:
    chunks = await clients.openai.chat.completions.create(
        model=MODEL,
        max_tokens=TOKENS,
        messages=_turns(prompt),
        extra_body=_FORCED,
        stream=True,
        stream_options={"include_usage": True},
    )
    *_, last = [chunk async for chunk in chunks]
    return _of_completion(last.id, last.usage)


async def _responses(clients: Sdks, prompt: str) -> tuple[str, Told]:
    whole = await clients.openai.responses.create(
        model=MODEL, max_output_tokens=TOKENS, input=prompt, extra_body=_FORCED
    )
    usage = whole.usage
    assert usage is not None
    cached = usage.input_tokens_details.cached_tokens
    return find_request_id(whole.id), (usage.input_tokens, cached, usage.output_tokens)


def _turns(prompt: str) -> Any:
    return [{"role": "user", "content": prompt}]


_FORCED = {"ignore_eos": True}
_CALLS = {
    "messages": _messages,
    "messages, streamed": _messages_streamed,
    "chat": _chat,
    "chat, streamed": _chat_streamed,
    "responses": _responses,
}
