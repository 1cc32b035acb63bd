"""`millstream bench streams`: many open streams of a slow model, then all leave at once.

A token every five seconds, pings between: what a connection costs in memory and CPU, how punctual
pings are, and how soon nothing is left after everybody hung up.
"""

import asyncio
import dataclasses
import json
from contextlib import AsyncExitStack
from dataclasses import dataclass

from infra.bench.accounts import Usage, cpu_between, sample
from infra.bench.children import start_load
from infra.bench.measure import Measure, measure
from infra.bench.plan import LoadPlan, LoadResult
from infra.bench.platform import RunningPlatform, clean_environ, running_platform
from infra.bench.prompts import body, prompts
from infra.bench.surroundings import Surroundings

__all__ = ["StreamsOptions", "bench_streams"]

_COUNTERS = {
    "gateway-0": ("requests_open", "replies_lag_records"),
    "worker-0": ("engine_running", "engine_waiting", "engine_kv_usage_ratio", "tail_lag_records"),
    "metering": ("usage_lag_records",),
}
"""What must be zero once nobody is there."""
_ENGINE = ("engine_running", "engine_waiting")
_EMPTY_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.05
_SETTLE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsOptions:
    """Sizes of the bench."""

    streams: int = 10_000
    seconds: float = 30.0
    """How long all streams are held."""
    token_every_s: float = 5.0
    ping_every_s: float = 2.0
    connects_per_s: float = 250.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """What was seen while the streams stood."""

    count: int
    grown_bytes: int
    """Growth of the gateway's memory."""
    cpu_s: dict[str, float]
    wall_s: float


async def bench_streams(surroundings: Surroundings, options: StreamsOptions) -> list[Measure]:
    """Run the bench; see the module."""
    room = options.streams + 64
    async with AsyncExitStack() as stack:
        load = await start_load(clean_environ(surroundings.environ), surroundings.folder)
        stack.push_async_callback(load.stop)
        platform = await stack.enter_async_context(
            running_platform(
                surroundings.folder,
                surroundings.environ,
                engine="scripted",
                scripted_step_ms=1_000 * options.token_every_s,
                scripted_prefill_tokens_per_s=1e9,
                runs_max=room,
                worker_inflight_max=room,
                gateway_inflight_max=room,
                keepalive_ms=int(1_000 * options.ping_every_s),
            )
        )
        before = sample(platform.pids())
        surroundings.say(f"opening {options.streams} streams")
        count = await load.hold(_plan(surroundings, platform, options))
        held = await _watch(platform, options, before, count)
        surroundings.say("all leave at once")
        began_s = surroundings.clock.monotonic_s()
        leaving = asyncio.create_task(load.leave())
        idle_s = await _until_zero(surroundings, platform, began_s, {"worker-0": _ENGINE})
        await leaving
        empty_s = await _until_zero(surroundings, platform, began_s, _COUNTERS)
        result = await load.result()
    surroundings.keep(
        "streams", {"held": dataclasses.asdict(held), "load": dataclasses.asdict(result)}
    )
    return _measures(options, held, result, idle_s, empty_s)


def _plan(
    surroundings: Surroundings, platform: RunningPlatform, options: StreamsOptions
) -> LoadPlan:
    texts = prompts(surroundings.entropy, "short", 256)
    return LoadPlan(
        host=platform.host,
        port=platform.port,
        path="/v1/chat/completions",
        headers=platform.headers,
        bodies=tuple(json.dumps(body(platform.model, text, 400, stream=True)) for text in texts),
        mode="hold",
        concurrency=options.streams,
        connects_per_s=options.connects_per_s,
    )


async def _watch(
    platform: RunningPlatform, options: StreamsOptions, before: dict[str, Usage], count: int
) -> _Held:
    await asyncio.sleep(_SETTLE_S)
    first = sample(platform.pids())
    await asyncio.sleep(options.seconds)
    last = sample(platform.pids())
    return _Held(
        count=count,
        grown_bytes=last["gateway-0"].rss_bytes - before["gateway-0"].rss_bytes,
        cpu_s=cpu_between(first, last),
        wall_s=options.seconds,
    )


async def _until_zero(
    surroundings: Surroundings,
    platform: RunningPlatform,
    began_s: float,
    counters: dict[str, tuple[str, ...]],
) -> float:
    """Return after how many seconds all counters were zero; infinity where they never were."""
    clock = surroundings.clock
    while clock.monotonic_s() - began_s < _EMPTY_WITHIN_S:
        found = {name: await platform.metrics(name) for name in counters}
        if not any(found[name].get(one, 0.0) for name, ones in counters.items() for one in ones):
            return clock.monotonic_s() - began_s
        await asyncio.sleep(_LOOK_EVERY_S)
    return float("inf")


def _measures(
    options: StreamsOptions, held: _Held, result: LoadResult, idle_s: float, empty_s: float
) -> list[Measure]:
    late_p99_s = max(0.0, (result.gaps.p99 or 0.0) - options.ping_every_s)
    latest_s = max(0.0, (result.gaps.highest or 0.0) - options.ping_every_s)
    measures = [
        measure("streams held", held.count, "streams", f">= {options.streams}"),
        measure("memory per stream", held.grown_bytes / max(1, held.count) / 1024, "KiB", "<= 25"),
        measure("ping lateness p99", 1e3 * late_p99_s, "ms", "<= 50"),
        measure("ping lateness highest", 1e3 * latest_s, "ms"),
        measure("engine idle after all left", idle_s, "s", "<= 2"),
        measure("all counters zero after all left", empty_s, "s", "<= 30"),
        measure("load generator lag p99", 1e3 * (result.own_lag.p99 or 0.0), "ms", "<= 25"),
    ]
    return measures + [
        measure(f"CPU of {name} while held", 100 * used / held.wall_s, "% of a core")
        for name, used in held.cpu_s.items()
    ]
