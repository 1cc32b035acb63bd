"""The cached part of a prompt over real HTTP: what each dialect's client is told of it, live,
resumed and whole."""

import asyncio
import json
from itertools import chain
from typing import Any

import pytest

from schemas.requests import RequestAccepted
from tests.gateway_calls import (
    ANTHROPIC,
    COMPLETIONS,
    OPENAI,
    RESPONSES,
    body_of,
    say,
)
from tests.gateway_http import serve
from tests.gateway_platform import FakeWorker
from tests.gateway_streams import SSE, TEXT, events_of, headers, http, reply_id_of

CACHED = 7
KEEPALIVE = b": keepalive\n"


def cached_of(told: dict[str, Any]) -> list[int]:
    """Return the cached tokens of each usage that an object or an event holds."""
    holder = told.get("message") or told.get("response") or told
    usage = holder.get("usage") or {}
    if "cache_read_input_tokens" in usage:
        return [usage["cache_read_input_tokens"]]
    details = usage.get("input_tokens_details") or usage.get("prompt_tokens_details")
    return [details["cached_tokens"]] if details else []


@pytest.mark.parametrize("path", [ANTHROPIC, OPENAI, COMPLETIONS, RESPONSES])
def test_every_form_of_a_reply_tells_the_same_number(path: str) -> None:
    """Streamed, resumed elsewhere, replayed and whole, the number is the log's; also where the
    client was kept waiting before the first token, which tells it."""

    async def say_late(worker: FakeWorker, request: RequestAccepted) -> None:
        await asyncio.sleep(0.1)
        await say(TEXT)(worker, request)

    async def scenario() -> None:
        async with serve(say_late, gateway_count=2, keepalive_ms=30) as served:
            served.platform.worker.cached_tokens = CACHED
            asks_usage = {"stream_options": {"include_usage": True}}
            more = asks_usage if path in (OPENAI, COMPLETIONS) else {}
            body = body_of(path, stream=True, **more)
            sent = headers(served, path, idempotency_key="k")
            async with http(served) as one, http(served, 1) as other:
                first = (await one.post(path, json=body, headers=sent)).content
                assert first.startswith(KEEPALIVE)
                events = events_of(first.replace(KEEPALIVE, b""))
                url = f"{path}/{reply_id_of(events)}"
                plain = headers(served, path)
                replayed = events_of((await other.post(path, json=body, headers=sent)).content)
                resumed = events_of((await other.get(url, headers=plain | SSE)).content)
                whole = [(await client.get(url, headers=plain)).json() for client in (one, other)]
                asked = (await one.post(path, json=body_of(path), headers=plain)).json()
            assert events == replayed == resumed
            data = [event.partition(b"data: ")[2] for event in events]
            told = [cached_of(json.loads(each)) for each in data if each != b"[DONE]"]
            assert list(chain(*told)) == [CACHED] * (2 if path == ANTHROPIC else 1)
            assert [cached_of(each) for each in (*whole, asked)] == [[CACHED]] * 3

    asyncio.run(scenario())
