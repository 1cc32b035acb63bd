"""`millstream bench hooks`: what keys, metering and totals cost, all of them on against all off.

On: every request has an idempotency key, its usage is metered and added up. Off: no request has
one, and the processes that meter and add up stand still (SIGSTOP); they catch up before the next
measurement. The same platform, the same load, blocks of both interleaved.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from infra.bench.children import start_load
from infra.bench.measure import Measure, measure
from infra.bench.platform import RunningPlatform, clean_environ
from infra.bench.prompts import prompts
from infra.bench.serving import Loop, PlatformLoops, platform_loops
from infra.bench.statistics import paired
from infra.bench.surroundings import Surroundings
from infra.config import Config

__all__ = ["HooksOptions", "bench_hooks", "hooks_measures"]

_HELD = ("metering", "stream-app")
_CATCH_UP_S = 15.0
"""To join their groups again, or to start again, and to have read what they missed."""
_TOKENS_BOUND = ">= 0.97"

Pairs = dict[int, list[tuple[Loop, Loop]]]
"""(on, off) of each round by concurrency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HooksOptions:
    """Sizes of the bench."""

    rounds: int = 5
    concurrencies: tuple[int, ...] = (1, 8, 32)
    tokens: int = 64
    requests: Mapping[int, int] = field(default_factory=lambda: {1: 4, 8: 24, 32: 96})


async def bench_hooks(
    surroundings: Surroundings, config: Config, options: HooksOptions
) -> list[Measure]:
    """Run the bench; see the module."""
    found: Pairs = {concurrency: [] for concurrency in options.concurrencies}
    load = await start_load(clean_environ(surroundings.environ), surroundings.folder)
    try:
        surroundings.say("starting the platform")
        async with platform_loops(surroundings, config, load) as platform:
            await platform.run(prompts(surroundings.entropy, "short", 32), 8, 64)
            await asyncio.sleep(_CATCH_UP_S)  # what follows a start takes CPU, too
            for number in range(options.rounds):
                await _round(surroundings, options, platform, found, on_first=number % 2 == 0)
                surroundings.say(
                    f"round {number + 1} of {options.rounds}, on / off: "
                    + ", ".join(
                        f"{concurrency} streams {pairs[-1][0].tokens_per_s:.0f} / "
                        f"{pairs[-1][1].tokens_per_s:.0f} tokens/s"
                        for concurrency, pairs in found.items()
                    )
                )
    finally:
        await load.stop()
    return hooks_measures(found)


def hooks_measures(found: Pairs) -> list[Measure]:
    """Judge all cases. Pure."""
    measures: list[Measure] = []
    for concurrency, pairs in found.items():
        for name, loops in zip(("on", "off"), zip(*pairs, strict=True), strict=True):
            spread = paired([loop.tokens_per_s for loop in loops])
            label = f"{concurrency} streams, hooks {name}: tokens/s"
            measures.append(measure(label, spread.middle, "1/s", note=spread.note))
        ratio = paired([on.tokens_per_s / off.tokens_per_s for on, off in pairs])
        label = f"{concurrency} streams: tokens/s with hooks, of those without"
        measures.append(measure(label, ratio.middle, "ratio", _TOKENS_BOUND, ratio.note))
        ttft = paired([on.ttft_p50_ms - off.ttft_p50_ms for on, off in pairs])
        label = f"{concurrency} streams: TTFT p50 that hooks add"
        measures.append(measure(label, ttft.middle, "ms", note=ttft.note))
    broken = sum(not loop.valid for pairs in found.values() for pair in pairs for loop in pair)
    return [*measures, measure("invalid loops", broken, "loops", "== 0")]


async def _round(
    surroundings: Surroundings,
    options: HooksOptions,
    platform: PlatformLoops,
    found: Pairs,
    *,
    on_first: bool,
) -> None:
    blocks: dict[bool, list[Loop]] = {}
    for on in (on_first, not on_first):
        if on:
            blocks[on] = await _block(surroundings, options, platform, keyed=True)
        else:
            async with _held(platform.platform):
                blocks[on] = await _block(surroundings, options, platform, keyed=False)
    for pair, concurrency in zip(
        zip(blocks[True], blocks[False], strict=True), options.concurrencies, strict=True
    ):
        found[concurrency].append(pair)


async def _block(
    surroundings: Surroundings, options: HooksOptions, platform: PlatformLoops, *, keyed: bool
) -> list[Loop]:
    loops = []
    for concurrency in options.concurrencies:
        texts = prompts(surroundings.entropy, "short", options.requests[concurrency])
        keys = tuple(surroundings.entropy.uuid() for _ in texts) if keyed else ()
        loops.append(await platform.run(texts, concurrency, options.tokens, keys=keys))
    return loops


@asynccontextmanager
async def _held(platform: RunningPlatform) -> AsyncIterator[None]:
    """Let the processes that meter and add up stand still, and give them time afterwards."""
    pids = [pid for name, pid in platform.pids().items() if name.rstrip("-0123456789") in _HELD]
    assert len(pids) == len(_HELD), "both run"
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(_CATCH_UP_S)
