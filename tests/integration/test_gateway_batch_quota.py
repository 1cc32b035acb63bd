"""Batches of an org that uses up its month's tokens, and what their results tell of caching."""

import asyncio

import anthropic
import openai
import pytest

from schemas import limits
from schemas.usage import UsageTotals, month_of
from tests.gateway_http import Served, serve
from tests.gateway_platform import until
from tests.integration.test_gateway_batches import Gate, ended, item, sdk_of
from tests.limited_calls import limit

CACHED = 2
WINDOW = limits.BATCH_ITEMS_INFLIGHT_MAX


def use_up(served: Served) -> None:
    """Let the org have used all its tokens of this month."""
    limit(served, tokens_per_month=100)
    served.deps.totals.apply(
        UsageTotals(
            org="acme",
            requests=1,
            input_tokens=90,
            cached_tokens=0,
            output_tokens=10,
            cost_nano=0,
            partition=0,
            next_offset=1,
            month=month_of(served.deps.clock.now_ms()),
            month_input_tokens=90,
            month_output_tokens=10,
        )
    )


def test_a_batch_ends_where_the_month_s_tokens_are_used_up() -> None:
    """What runs already ends well, and tells its cached part; the rest gets the error of a call of
    its own; no further batch is made."""

    async def scenario() -> None:
        gate = Gate()
        async with serve(gate.script) as served:
            served.platform.worker.cached_tokens = CACHED
            sdk = sdk_of(served)
            made = await sdk.messages.batches.create(
                requests=[item(f"i{number}") for number in range(WINDOW + 3)]
            )
            await until(lambda: len(served.platform.worker.seen) == WINDOW)
            use_up(served)
            gate.opened.set()
            counts = (await ended(sdk, made.id)).request_counts
            assert (counts.succeeded, counts.errored) == (WINDOW, 3)
            async for line in await sdk.messages.batches.results(made.id):
                if line.result.type == "succeeded":
                    assert line.result.message.usage.cache_read_input_tokens == CACHED
                else:
                    assert line.result.type == "errored"
                    assert line.result.error.error.type == "rate_limit_error"
            with pytest.raises(anthropic.RateLimitError) as refused:
                await sdk.messages.batches.create(requests=[item("a")])
            assert refused.value.response.headers["x-should-retry"] == "false"
            await sdk.close()
            async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=served.key) as other:
                with pytest.raises(openai.RateLimitError) as told:
                    await other.batches.create(
                        input_file_id="file-x",
                        endpoint="/v1/chat/completions",
                        completion_window="24h",
                    )
            assert told.value.code == "insufficient_quota"

    asyncio.run(scenario())
