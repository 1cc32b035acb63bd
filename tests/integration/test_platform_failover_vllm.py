"""Two workers with vLLM: kill -9 of either at a random moment, under streams of both dialects."""

import asyncio
import math
import random
import signal
import time
from collections.abc import Sequence
from itertools import takewhile

import pytest

from infra.bench.statistics import percentile
from infra.bench.watched import pause_over
from tests.integration.platform import MODEL, SOAK, Platform, eventually
from tests.integration.watched_streams import (
    PATHS,
    WatchedStream,
    busiest_worker,
    http_of,
    signal_process,
    wait_back,
)

pytestmark = pytest.mark.vllm

STREAMS = 16
KILLS = 20 if SOAK else 3
TOKENS = 120 if SOAK else 60
STREAM_WITHIN_S = 120.0
BACK_WITHIN_S = 300.0
DIFFERENT_SHARE_MAX = 0.02
"""Of all streams: batches of another shape round otherwise, so that near ties fall otherwise."""


def streams() -> list[WatchedStream]:
    """Return greedy streams of both dialects, each with a prompt of its own."""
    return [
        WatchedStream(
            path=PATHS[number % 2],
            body={
                "model": MODEL,
                "messages": [{"role": "user", "content": f"Tell me {number + 2} facts about tea."}],
                "max_tokens": TOKENS,
                "temperature": 0,
                "ignore_eos": True,
            },
        )
        for number in range(STREAMS)
    ]


def test_kills_of_workers_cost_a_pause(vllm_pair: Platform) -> None:
    """Every stream completes with all its tokens, what came before the kill is unchanged, the text
    is the undisturbed one (but for near ties in a few), each has one row, and the audit agrees."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    undisturbed = streams()
    asyncio.run(_follow(vllm_pair, undisturbed))
    texts = [stream.text for stream in undisturbed]
    pauses_s: list[float] = []
    different = 0

    async def killed() -> list[WatchedStream]:
        nonlocal different
        disturbed = streams()
        running = asyncio.create_task(_follow(vllm_pair, disturbed))
        while not all(stream.events for stream in disturbed):  # noqa: ASYNC110  # many events
            await asyncio.sleep(0.02)
        await asyncio.sleep(rng.uniform(0.0, 2.0))
        victim = await asyncio.to_thread(busiest_worker, vllm_pair)
        before = [stream.text for stream in disturbed]
        pid = signal_process(vllm_pair, victim, signal.SIGKILL)
        killed_s = time.perf_counter()
        await running
        pauses_s.extend(pause_over(stream.arrivals_s, killed_s) for stream in disturbed)
        for stream, had, wanted in zip(disturbed, before, texts, strict=True):
            assert stream.text.startswith(had)
            assert stream.output_tokens == TOKENS
            if stream.text != wanted:
                different += 1
                print(f"differs after {_common(stream.text, wanted)} characters")
        await asyncio.to_thread(wait_back, vllm_pair, victim, pid, BACK_WITHIN_S)
        return disturbed

    for _ in range(KILLS):
        began_s = time.monotonic()
        ended = asyncio.run(killed())
        print(f"killed, whole and back within {time.monotonic() - began_s:.1f} s")
        ids = [stream.request_id for stream in ended]
        _check_metered(vllm_pair, ids)
    print(
        f"{KILLS} kills, {different} of {KILLS * STREAMS} texts differ; pauses of all streams: "
        f"p50 {percentile(pauses_s, 0.5):.2f} s, highest {max(pauses_s):.2f} s"
    )
    assert different <= math.ceil(DIFFERENT_SHARE_MAX * KILLS * STREAMS)
    vllm_pair.check_audit()


async def _follow(platform: Platform, started: Sequence[WatchedStream]) -> None:
    async with http_of(platform, STREAM_WITHIN_S) as client:
        await asyncio.gather(*(stream.follow(client, platform.key) for stream in started))
    for stream in started:
        stream.check_whole()


def _check_metered(platform: Platform, ids: list[str]) -> None:
    eventually(lambda: len(platform.usage_of(ids)) == len(ids), 10.0, "all are metered")
    assert {row[1] for row in platform.usage_of(ids).values()} == {TOKENS}


def _common(one: str, other: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
