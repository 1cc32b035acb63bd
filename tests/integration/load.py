"""Requests through the official SDKs, one at a time or many at once, and what each came to.

A stream that ends cleanly without its last event would pass for a complete reply in the SDKs, so
every reply is checked to have its stop reason here.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx2
import openai
from anthropic.types import Message

from schemas.ids import find_request_id
from tests.integration.platform import DEADLINE_S, MODEL

HANG_S = DEADLINE_S + 5.0
"""Whatever takes longer than this past a request's start is a hang."""
CUT = (anthropic.APIError, openai.APIError, httpx2.HTTPError)
"""What an SDK may raise for a request that was cut."""
_PAUSE_AFTER_FAILURE_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply that ended well, as the client saw it."""

    request_id: str
    dialect: str
    stream: bool
    text: str
    stop: str
    input_tokens: int
    """The whole prompt's, cached ones included."""
    output_tokens: int
    cached_tokens: int = 0
    ended_s: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A request that raised."""

    started_s: float
    took_s: float
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class Sdks:
    """One client of each official SDK; neither retries by itself."""

    anthropic: anthropic.AsyncAnthropic
    openai: openai.AsyncOpenAI


@asynccontextmanager
async def sdks(url: str, key: str) -> AsyncIterator[Sdks]:
    """Open both SDKs on a platform."""
    async with (
        anthropic.AsyncAnthropic(
            base_url=url,
            api_key=key,
            max_retries=0,
            timeout=HANG_S,
            default_headers={"anthropic-version": "2023-06-01"},
        ) as first,
        openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=HANG_S
        ) as second,
    ):
        yield Sdks(anthropic=first, openai=second)


async def ask(
    clients: Sdks, dialect: str, prompt: str, *, stream: bool, max_tokens: int, **extra: object
) -> Reply:
    """Send one request and return its reply; `extra` are further body fields.

    Raises what the SDK raises. Fails where the reply ends without a stop reason.
    """
    messages: Any = [{"role": "user", "content": prompt}]
    send = _send_anthropic if dialect == "anthropic" else _send_openai
    async with asyncio.timeout(HANG_S):
        reply = await send(clients, messages, stream, max_tokens, extra)
    assert reply.stop, f"a clean end without a stop reason: {reply}"
    return reply


async def _send_anthropic(
    clients: Sdks, messages: Any, stream: bool, max_tokens: int, extra: dict[str, object]
) -> Reply:
    create = clients.anthropic.messages
    message: Message
    if stream:
        async with create.stream(
            model=MODEL, messages=messages, max_tokens=max_tokens, extra_body=extra
        ) as events:
            message = await events.get_final_message()
    else:
        message = await create.create(
            model=MODEL, messages=messages, max_tokens=max_tokens, extra_body=extra
        )
    usage = message.usage
    cached = usage.cache_read_input_tokens or 0
    return Reply(
        request_id=find_request_id(message.id),
        dialect="anthropic",
        stream=stream,
        text="".join(block.text for block in message.content if block.type == "text"),
        stop=message.stop_reason or "",
        input_tokens=usage.input_tokens + cached,
        output_tokens=usage.output_tokens,
        cached_tokens=cached,
    )


async def _send_openai(
    clients: Sdks, messages: Any, stream: bool, max_tokens: int, extra: dict[str, object]
) -> Reply:
    create = clients.openai.chat.completions.create
    stop = ""
    if not stream:
        whole = await create(
            model=MODEL, messages=messages, max_completion_tokens=max_tokens, extra_body=extra
        )
        choice, usage, reply_id = whole.choices[0], whole.usage, whole.id
        text, stop = choice.message.content or "", choice.finish_reason or ""
    else:
        text, usage, reply_id = "", None, ""
        async for chunk in await create(
            model=MODEL,
            messages=messages,
            max_completion_tokens=max_tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=extra,
        ):
            reply_id, usage = chunk.id, chunk.usage or usage
            for choice_chunk in chunk.choices:
                text += choice_chunk.delta.content or ""
                stop = choice_chunk.finish_reason or stop
        assert usage is not None or not stop, "a finished stream without usage"
    details = usage.prompt_tokens_details if usage else None
    return Reply(
        request_id=find_request_id(reply_id),
        dialect="openai",
        stream=stream,
        text=text,
        stop=stop,
        input_tokens=usage.prompt_tokens if usage else 0,
        output_tokens=usage.completion_tokens if usage else 0,
        cached_tokens=details.cached_tokens or 0 if details else 0,
    )


@dataclass(slots=True)
class Load:
    """Requests of all kinds, sent by several clients at once."""

    clients: Sdks
    tokens: Callable[[int], int] = lambda number: 20 + 17 * number % 60
    """How many tokens the n-th request generates."""
    finished: list[Reply] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    _number: int = 0
    _stopping: bool = False

    def stop(self) -> None:
        """Make every client stop after the request it has."""
        self._stopping = True

    async def send_for_ever(self) -> None:
        """Be one client: send until `stop`."""
        while not self._stopping:
            if not await self.send_next():
                await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)

    async def send_next(self) -> bool:
        """Send the next request; return whether it ended well. A hang fails the test."""
        number, self._number = self._number, self._number + 1
        started_s, tokens = time.monotonic(), self.tokens(number)
        try:
            reply = await ask(
                self.clients,
                "anthropic" if number % 2 else "openai",
                f"Count from {number % 7} up to {'a high number ' * (number % 5)}please.",
                stream=number % 4 < 2,
                max_tokens=tokens,
                ignore_eos=True,
            )
        except CUT as error:
            took_s = time.monotonic() - started_s
            self.failed.append(Failure(started_s=started_s, took_s=took_s, error=error))
            return False
        assert reply.output_tokens == tokens, f"{tokens} tokens asked for: {reply}"
        self.finished.append(reply)
        return True
