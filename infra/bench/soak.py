"""`millstream bench soak`: mixed traffic; kills in the first quarter, memory in the second half.

After it: every queue empty, the audit clean, and no process growing.
"""

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from infra.bench.accounts import rss_bytes
from infra.bench.measure import Measure, measure
from infra.bench.platform import RunningPlatform, run_command, running_platform
from infra.bench.statistics import slope_per_minute
from infra.bench.surroundings import Surroundings
from infra.bench.traffic import Traffic

__all__ = ["SoakOptions", "bench_soak"]

_VICTIMS = ("worker-0", "gateway-0", "metering", "stream-app", "clickhouse", "kafka-0")
_QUEUES = {
    "gateway-0": ("requests_open", "replies_lag_records"),
    "worker-0": ("engine_running", "engine_waiting", "tail_lag_records"),
    "metering": ("usage_lag_records",),
}
_LOOK_EVERY_S = 5.0
_DRAIN_WITHIN_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions:
    """Sizes of the bench."""

    minutes: float = 10.0
    clients: int = 16
    engine: str = "scripted"
    kill_every_s: float = 20.0
    """In the first quarter of the time; in the second one, what was started again warms up."""
    warm_up_share: float = 0.1
    """Of the second half: before memory is looked at."""


@dataclass(slots=True)
class _Seen:
    """What was seen over the time."""

    kills: list[str] = field(default_factory=list)
    memory: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """(seconds, MiB) by process, of the second half after its warm-up."""
    deepest: dict[str, float] = field(default_factory=dict)


async def bench_soak(surroundings: Surroundings, options: SoakOptions) -> list[Measure]:
    """Run the bench; see the module."""
    seen = _Seen()
    async with AsyncExitStack() as stack:
        platform = await stack.enter_async_context(
            running_platform(
                surroundings.folder,
                surroundings.environ,
                engine=options.engine,
                deadline_ms=30_000,
            )
        )
        traffic = Traffic(platform, surroundings.entropy, platform.port)
        running = asyncio.create_task(traffic.run(options.clients))
        half_s = 30 * options.minutes
        await _kill(surroundings, platform, options, seen, half_s / 2)
        surroundings.say("warm-up")
        await asyncio.sleep(half_s / 2)
        surroundings.say("steady half")
        await _watch(surroundings, platform, options, seen, half_s)
        traffic.stop()
        await running
        left = await _drain(surroundings, platform)
        audit_code, audit_text = await run_command(
            ("audit", "--data", str(platform.data), "--json"), platform.environ
        )
    surroundings.say(f"outcomes: {dict(traffic.outcomes)}; kills: {seen.kills}")
    surroundings.keep(
        "soak",
        {
            "memory_mib": seen.memory,
            "outcomes": dict(traffic.outcomes),
            "kills": seen.kills,
            "deepest": seen.deepest,
            "audit": json.loads(audit_text or "null"),
        },
    )
    return _measures(seen, traffic, left, audit_code)


async def _kill(
    surroundings: Surroundings,
    platform: RunningPlatform,
    options: SoakOptions,
    seen: _Seen,
    seconds: float,
) -> None:
    """Kill one process after the other, whether or not the last one is back."""
    until_s = surroundings.clock.monotonic_s() + seconds
    turn = 0
    while surroundings.clock.monotonic_s() + options.kill_every_s < until_s:
        await asyncio.sleep(options.kill_every_s)
        victim = _VICTIMS[turn % len(_VICTIMS)]
        turn += 1
        pid = platform.pids().get(victim)
        if pid is not None:
            surroundings.say(f"kill -9 {victim}")
            os.kill(pid, signal.SIGKILL)
            seen.kills.append(victim)
    await asyncio.sleep(max(0.0, until_s - surroundings.clock.monotonic_s()))


async def _watch(
    surroundings: Surroundings,
    platform: RunningPlatform,
    options: SoakOptions,
    seen: _Seen,
    seconds: float,
) -> None:
    """Note memory and queues; a process that restarts on its own begins its series anew."""
    began_s = surroundings.clock.monotonic_s()
    pids = platform.pids()
    while (passed_s := surroundings.clock.monotonic_s() - began_s) < seconds:
        for name, pid in platform.pids().items():
            if pids.get(name) != pid:
                seen.memory.pop(name, None)
                pids[name] = pid
            if name != "supervisor" and passed_s >= options.warm_up_share * seconds:
                points = seen.memory.setdefault(name, [])
                points.append((passed_s, rss_bytes(pid) / 2**20))
        for name, depth in (await _depths(platform)).items():
            seen.deepest[name] = max(seen.deepest.get(name, 0.0), depth)
        await asyncio.sleep(_LOOK_EVERY_S)


async def _depths(platform: RunningPlatform) -> dict[str, float]:
    found: dict[str, float] = {}
    for process, names in _QUEUES.items():
        metrics = await platform.metrics(process)
        found |= {f"{process} {name}": metrics.get(name, 0.0) for name in names}
    return found


async def _drain(surroundings: Surroundings, platform: RunningPlatform) -> float:
    """Return what is left in all queues once nobody asks any more, as soon as it is nothing."""
    until_s = surroundings.clock.monotonic_s() + _DRAIN_WITHIN_S
    while True:
        left = sum((await _depths(platform)).values())
        if not left or surroundings.clock.monotonic_s() >= until_s:
            return left
        await asyncio.sleep(1)


def _measures(seen: _Seen, traffic: Traffic, left: float, audit_code: int) -> list[Measure]:
    measures = [
        measure(f"RSS slope of {name}", slope_per_minute(points), "MiB/min", "<= 1")
        for name, points in sorted(seen.memory.items())
    ]
    measures += [
        measure(f"deepest {name}", depth, "") for name, depth in sorted(seen.deepest.items())
    ]
    outcomes = traffic.outcomes
    measures += [
        measure("left in queues at the end", left, "", "== 0"),
        measure("audit", audit_code, "exit status", "== 0"),
        measure("replies whole", outcomes["done"], "requests"),
        measure("clients that left", outcomes["left"], "requests"),
        measure("kills", len(seen.kills), "kills", ">= 1"),
    ]
    for reason, count in sorted(outcomes.items()):
        if reason not in ("done", "left"):
            measures.append(measure(f"failed: {reason}", count, "requests"))
    return measures
