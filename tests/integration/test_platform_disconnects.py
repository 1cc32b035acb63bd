"""Clients that leave: the engine stops, and what was accepted is billed once."""

import asyncio
import time
from dataclasses import dataclass

import httpx
import pytest

from tests.integration.platform import MODEL, Platform, eventually

PATHS = {"anthropic": "/v1/messages", "openai": "/v1/chat/completions"}
STEP_S = 0.5
"""Longest step of the engine: prefill is cut into chunks that fit it."""
DROPPED_WITHIN_S = 1.0 + STEP_S
MOMENTS = ("before the first token", "mid-stream", "non-stream")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the view `usage`, as far as it matters here."""

    input_tokens: int
    output_tokens: int
    stop_reason: str | None
    close_reason: str | None


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("dialect", ["anthropic", "openai"])
def test_a_client_that_leaves_stops_the_engine(
    platform: Platform, dialect: str, moment: str
) -> None:
    """The engine drops the request within 1 s and a step; the row says cancelled, and bills the
    whole prompt and the accepted tokens once, or nothing where no token was accepted."""
    eventually(lambda: platform.engine_load() == 0, 10.0, "the engine is idle")
    user = f"{dialect} {moment} {time.time_ns()}"
    events, left_s = asyncio.run(_leave(platform, dialect, moment, user))
    eventually(lambda: platform.engine_load() == 0, DROPPED_WITHIN_S, "the engine dropped it")
    dropped_after_s = time.monotonic() - left_s
    eventually(lambda: bool(_rows(platform, user)), 5.0, "its row is visible")
    (row,) = _rows(platform, user)
    print(f"{dialect}, {moment}: dropped after {dropped_after_s:.2f} s, {row}")
    assert dropped_after_s < DROPPED_WITHIN_S
    assert (row.stop_reason, row.close_reason) == (None, "cancelled")
    if moment == "before the first token":
        assert (row.input_tokens, row.output_tokens) == (0, 0)
    else:
        assert row.input_tokens > 0
        assert events <= row.output_tokens < 3_000
        assert row.output_tokens > 0


def test_clients_that_left_are_no_difference_to_the_audit(platform: Platform) -> None:
    """Cancelled replies are metered as they stand on the log."""
    report = platform.check_audit()
    assert report["unfinished"] == 0


async def _leave(platform: Platform, dialect: str, moment: str, user: str) -> tuple[int, float]:
    """Send a request and leave in the middle; return the events seen and when it left."""
    body = _body(dialect, user, long_prompt=moment == MOMENTS[0], stream=moment != "non-stream")
    headers = {"x-api-key": platform.key, "anthropic-version": "2023-06-01"}
    seen: list[str] = []
    enough = asyncio.Event()

    async def read(client: httpx.AsyncClient) -> None:
        async with client.stream("POST", PATHS[dialect], json=body, headers=headers) as answer:
            async for line in answer.aiter_lines():
                if '"text_delta"' in line or ('"content":"' in line and '"content":""' not in line):
                    seen.append(line)  # a cancelled comprehension keeps nothing
                    if len(seen) == 5:
                        enough.set()
        raise AssertionError("it ended before its client left")

    async with httpx.AsyncClient(base_url=platform.url, timeout=30, trust_env=False) as client:
        reading = asyncio.create_task(read(client))
        await asyncio.to_thread(eventually, lambda: platform.engine_load() > 0, 5.0, "it runs")
        if moment == "mid-stream":
            async with asyncio.timeout(10):
                await enough.wait()
        elif moment == "non-stream":
            await asyncio.sleep(0.5)
        else:
            await asyncio.sleep(0.1)
        assert not reading.done(), reading.exception()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        return len(seen), time.monotonic()


def _body(dialect: str, user: str, *, long_prompt: bool, stream: bool) -> dict[str, object]:
    named = {"metadata": {"user_id": user}} if dialect == "anthropic" else {"user": user}
    # The name stands first, so that no other prompt's prefix is in the cache.
    text = f"{user} " + ("tell me more about it " * 600 if long_prompt else "")
    return {
        "model": MODEL,
        "max_tokens": 1_000 if long_prompt else 3_000,
        "stream": stream,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": text}],
        **named,
    }


def _rows(platform: Platform, user: str) -> list[Row]:
    with platform.analyst() as client:
        found = client.query(
            "SELECT input_tokens, output_tokens, stop_reason, close_reason FROM usage "
            "WHERE user = {user:String}",
            parameters={"user": user},
        )
        return [
            Row(input_tokens=a, output_tokens=b, stop_reason=c, close_reason=d)
            for a, b, c, d in found.result_rows
        ]
