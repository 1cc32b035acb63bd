"""Limits as both official SDKs meet them: waited for where that helps, else told at once."""

import asyncio
from typing import Any

import anthropic
import openai
import pytest
from msgspec.structs import replace

from schemas.usage import UsageTotals, month_of
from tests.gateway_calls import MESSAGES, say
from tests.gateway_http import MODEL, serve
from tests.limited_calls import COUNT, ask, demands, limit


def test_the_anthropic_sdk_waits_as_told_and_then_succeeds() -> None:
    """The refusal is retried once by the SDK itself, after retry-after."""

    async def scenario() -> None:
        async with serve(say("ok"), quota=True) as served:
            limit(served, requests_per_minute=30)
            sdk = anthropic.AsyncAnthropic(base_url=served.url, api_key=served.key, max_retries=2)
            async with sdk:
                with pytest.raises(anthropic.RateLimitError) as caught:
                    for _ in range(60):
                        await sdk.with_options(max_retries=0).messages.create(
                            model=MODEL, max_tokens=5, messages=MESSAGES
                        )
                assert caught.value.type == "rate_limit_error"
                assert 0 < float(caught.value.response.headers["retry-after"]) <= 3
                seen = len(served.log.lines)
                message = await sdk.messages.create(model=MODEL, max_tokens=5, messages=MESSAGES)
                assert message.content
            statuses = [line["status"] for line in served.log.lines[seen:]]
            assert statuses == [429, 200]

    asyncio.run(scenario())


def test_used_up_tokens_of_a_month_end_in_one_attempt_of_either_sdk() -> None:
    """Both SDKs show the error of an exhausted quota, and neither tries again."""

    async def scenario() -> None:
        async with serve(say("ok"), quota=True) as served:
            limit(served, tokens_per_month=100)
            totals = UsageTotals(
                org="acme",
                requests=1,
                input_tokens=90,
                cached_tokens=0,
                output_tokens=10,
                cost_nano=0,
                partition=0,
                next_offset=1,
                month=month_of(served.deps.clock.now_ms()) - 1,
                month_input_tokens=90,
                month_output_tokens=10,
            )
            served.deps.totals.apply(totals)
            assert (await ask(served)).status_code == 200, "last month's use does not count"
            now = month_of(served.deps.clock.now_ms())
            served.deps.totals.apply(replace(totals, month=now))
            seen = len(served.log.lines)
            async with anthropic.AsyncAnthropic(base_url=served.url, api_key=served.key) as sdk:
                with pytest.raises(anthropic.RateLimitError) as caught:
                    await sdk.messages.create(model=MODEL, max_tokens=5, messages=MESSAGES)
            body: Any = caught.value.body
            assert body["error"]["details"] == {"error_code": "enforced_spend_limit_reached"}
            async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=served.key) as other:
                with pytest.raises(openai.RateLimitError) as refused:
                    await other.chat.completions.create(model=MODEL, messages=MESSAGES)
            assert refused.value.type == refused.value.code == "insufficient_quota"
            for error in (caught.value, refused.value):
                assert error.response.headers["x-should-retry"] == "false"
                assert "retry-after" not in error.response.headers
            assert len(served.log.lines) == seen + 2, "one attempt each"
            assert (await ask(served, COUNT)).status_code == 200, "counting is free"
            assert demands(served) == 0

    asyncio.run(scenario())
