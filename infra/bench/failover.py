"""`millstream bench failover`: two workers, open streams, kill -9 of the one that serves most.

What a client notices of a worker's death is a pause: the time from the kill to the next token of
each stream that the dead worker served. Which those are stands in the log. Beside it, with the
scripted engine: what an idempotency key adds to a request.
"""

import asyncio
import dataclasses
import os
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from time import perf_counter

import httpx

from infra.bench.keyed import keyed_added
from infra.bench.measure import Measure, measure
from infra.bench.platform import RunningPlatform, run_command, running_platform
from infra.bench.starts import StartTail
from infra.bench.statistics import percentile
from infra.bench.surroundings import Surroundings
from infra.bench.watched import WatchedStream, pause_over
from infra.supervisor.state import read_state

__all__ = ["FailoverOptions", "bench_failover"]

_BOUNDS_S = {"vllm": (1.5, 4.0), "scripted": (0.3, None)}
"""Highest p50 and p99."""
_OPEN_WITHIN_S = 120.0
_BACK_WITHIN_S = 300.0
_LOOK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverOptions:
    """Sizes of the bench."""

    engine: str = "vllm"
    dtype: str = "float32"
    rounds: int = 5
    """Kills for each number of streams."""
    streams: tuple[int, ...] = (4, 16)
    tokens: int = 200
    step_ms: float = 10.0
    """Of the scripted engine."""
    keyed_pairs: int = 500
    """Of the scripted engine; 0 = leave that out."""


@dataclass(slots=True)
class _Seen:
    """What was seen with one number of streams."""

    pauses_s: list[float] = field(default_factory=list)
    """Of the streams that the killed worker served."""
    undisturbed: int = 0
    broken: list[str] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)
    """From a kill until the worker serves again."""


async def bench_failover(surroundings: Surroundings, options: FailoverOptions) -> list[Measure]:
    """Run the bench; see the module."""
    seen = {count: _Seen() for count in options.streams}
    measures: list[Measure] = []
    async with AsyncExitStack() as stack:
        platform = await stack.enter_async_context(
            running_platform(
                surroundings.folder,
                surroundings.environ,
                engine=options.engine,
                workers=2,
                dtype=options.dtype,
                scripted_step_ms=options.step_ms,
            )
        )
        if options.engine == "scripted" and options.keyed_pairs:
            surroundings.say(f"{options.keyed_pairs} pairs of requests, keyed and not")
            measures += await keyed_added(surroundings, platform, options.keyed_pairs)
        tail = StartTail(await _address(platform))
        await tail.start()
        stack.push_async_callback(tail.close)
        for number in range(options.rounds):
            for count in options.streams:
                surroundings.say(f"round {number + 1} of {options.rounds}: {count} streams")
                await _round(surroundings, platform, tail, options, count, seen[count])
        audit_code, _ = await run_command(("audit", "--data", str(platform.data)), platform.environ)
    surroundings.keep("failover", {str(n): dataclasses.asdict(one) for n, one in seen.items()})
    for count, one in seen.items():
        measures += _measures(options, count, one)
    return [*measures, measure("audit", audit_code, "exit status", "== 0")]


async def _address(platform: RunningPlatform) -> str:
    state = read_state(platform.data / "state.json")
    assert state is not None, "it is ready"
    return state.endpoints.kafka


async def _round(
    surroundings: Surroundings,
    platform: RunningPlatform,
    tail: StartTail,
    options: FailoverOptions,
    count: int,
    seen: _Seen,
) -> None:
    """Open streams, kill the worker that serves most of them, let all end, await its return."""
    await tail.skip()
    bounds = httpx.Limits(max_connections=count + 8)
    async with httpx.AsyncClient(
        base_url=f"http://{platform.host}:{platform.port}",
        headers=platform.headers,
        timeout=_OPEN_WITHIN_S,
        limits=bounds,
        trust_env=False,
        verify=False,
    ) as client:
        streams = [
            WatchedStream(surroundings.entropy, platform.model, options.tokens, anthropic=n % 2 > 0)
            for n in range(count)
        ]
        running = [asyncio.create_task(stream.follow(client)) for stream in streams]
        async with asyncio.timeout(_OPEN_WITHIN_S):
            while not all(s.arrivals_s or s.failure for s in streams):  # noqa: ASYNC110  # many
                await asyncio.sleep(_LOOK_EVERY_S)
        await asyncio.sleep(surroundings.entropy.bits(10) / 1_000)
        victim = await _busiest(platform)
        killed_s = perf_counter()
        os.kill(platform.pids()[victim], signal.SIGKILL)
        await asyncio.gather(*running)
    workers = await tail.read()
    for stream in streams:
        if stream.failure is not None:
            seen.broken.append(stream.failure)
        elif _moved_from(victim, workers.get(stream.request_id, ())):
            seen.pauses_s.append(pause_over(stream.arrivals_s, killed_s))
        else:
            seen.undisturbed += 1
    surroundings.say(f"pauses: {' '.join(f'{pause_s:.2f}' for pause_s in seen.pauses_s)} s")
    await _until_back(platform, victim)
    seen.back_s.append(perf_counter() - killed_s)


def _moved_from(victim: str, incarnations: Sequence[str]) -> bool:
    return len(incarnations) > 1 and incarnations[0].startswith(f"{victim}/")


async def _busiest(platform: RunningPlatform) -> str:
    """Return the worker whose engine has most requests."""
    loads = {
        name: (await platform.metrics(name)).get("engine_running", 0.0)
        for name in ("worker-0", "worker-1")
    }
    return max(loads, key=lambda name: loads[name])


async def _until_back(platform: RunningPlatform, victim: str) -> None:
    async with asyncio.timeout(_BACK_WITHIN_S):
        while True:
            state = read_state(platform.data / "state.json")
            if state is not None and all(
                entry.ready for entry in state.processes if entry.name.startswith("worker-")
            ):
                return
            await asyncio.sleep(_LOOK_EVERY_S)


def _measures(options: FailoverOptions, count: int, seen: _Seen) -> list[Measure]:
    p50_max, p99_max = _BOUNDS_S[options.engine]
    name, note = f"{options.engine}, {count} streams", f"{len(seen.pauses_s)} streams moved"
    return [
        measure(
            f"{name}: pause p50", percentile(seen.pauses_s, 0.5), "s", f"<= {p50_max}", note=note
        ),
        measure(
            f"{name}: pause p99",
            percentile(seen.pauses_s, 0.99),
            "s",
            None if p99_max is None else f"<= {p99_max:g}",
        ),
        measure(f"{name}: streams broken", len(seen.broken), "streams", "== 0"),
        measure(f"{name}: streams of the other worker", seen.undisturbed, "streams"),
        measure(f"{name}: killed worker serves again, median", _middle(seen.back_s), "s"),
    ]


def _middle(values: Sequence[float]) -> float:
    return percentile(values, 0.5)
