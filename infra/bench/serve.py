"""`millstream bench serve`: tokens/s and latencies beside the bare engine and vLLM's own server.

Rounds are interleaved, so that machine noise hits all alike; ratios are taken within a round.
Only the system whose turn it is has load; the idle CPU of the others is measured too.
"""

import dataclasses
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from infra.bench.accounts import cpu_between, pss_bytes, rss_bytes, sample
from infra.bench.children import start_load
from infra.bench.measure import Measure, measure
from infra.bench.platform import clean_environ
from infra.bench.plots import bars
from infra.bench.prompts import prompts
from infra.bench.serving import Loop, Loops, bare_engine, platform_loops, vllm_server
from infra.bench.statistics import paired
from infra.bench.surroundings import Surroundings
from infra.config import Config

__all__ = ["BARE", "OURS", "TUNED", "ServeOptions", "bench_serve", "serve_measures"]

BARE = "engine alone"
TUNED = "vllm tuned"
DEFAULT = "vllm default"
OURS = "millstream"
_TOKENS_BOUNDS = {"short": ">= 1.05", "long": ">= 1"}
_BARE_BOUNDS = {1: ">= 0.9", 8: ">= 0.95", 32: ">= 0.97"}

Case = tuple[str, int]
"""Kind of prompt and concurrency."""
Rounds = dict[str, list[Loop]]
"""Loops by system, one a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Sizes of the bench."""

    rounds: int = 5
    kinds: tuple[str, ...] = ("short", "long")
    concurrencies: tuple[int, ...] = (1, 8, 32)
    tokens: int = 64
    default_server: bool = True
    """Measure vLLM's server with its own defaults too, for information."""
    server: bool = True
    requests: Mapping[int, int] = field(default_factory=lambda: {1: 4, 8: 16, 32: 64})


async def bench_serve(
    surroundings: Surroundings, config: Config, options: ServeOptions
) -> list[Measure]:
    """Run the bench; see the module."""
    found: dict[Case, Rounds] = {}
    information: list[Measure] = []
    async with AsyncExitStack() as stack:
        load = await start_load(clean_environ(surroundings.environ), surroundings.folder)
        stack.push_async_callback(load.stop)
        systems: dict[str, Loops] = {}
        surroundings.say("starting the engine alone")
        systems[BARE] = await stack.enter_async_context(bare_engine(surroundings, config))
        if options.server:
            surroundings.say("starting vLLM's server, tuned")
            server = vllm_server(surroundings, config, load, tuned=True)
            systems[TUNED] = await stack.enter_async_context(server)
        surroundings.say("starting the platform")
        platform = platform_loops(surroundings, config, load)
        systems[OURS] = await stack.enter_async_context(platform)
        await _rounds(surroundings, options, systems, found)
        information += _memory(systems)
    if options.server and options.default_server:
        async with AsyncExitStack() as stack:
            load = await start_load(clean_environ(surroundings.environ), surroundings.folder)
            stack.push_async_callback(load.stop)
            surroundings.say("starting vLLM's server as it comes")
            server = vllm_server(surroundings, config, load, tuned=False)
            systems = {DEFAULT: await stack.enter_async_context(server)}
            await _rounds(surroundings, options, systems, found)
    surroundings.keep("serve", _raw(found))
    for name, unit, value in (
        ("tokens_per_s", "tokens/s", attrgetter("tokens_per_s")),
        ("ttft_p50", "ms", attrgetter("ttft_p50_ms")),
    ):
        groups = {
            f"{kind}, {concurrency} streams": {
                system: paired([value(loop) for loop in loops]).middle
                for system, loops in rounds.items()
            }
            for (kind, concurrency), rounds in found.items()
        }
        surroundings.draw(f"serve_{name}", bars(f"bench serve: {name}", unit, groups))
    return serve_measures(found) + information


async def _rounds(
    surroundings: Surroundings,
    options: ServeOptions,
    systems: Mapping[str, Loops],
    found: dict[Case, Rounds],
) -> None:
    """Warm every system up, then measure case by case, round by round, system by system."""
    for system in systems.values():
        await system.run(prompts(surroundings.entropy, "short", 4), 2, 16)
    everyone = {name: pid for system in systems.values() for name, pid in system.pids().items()}
    idle = _Idle(everyone)
    for number in range(options.rounds):
        for kind in options.kinds:
            for concurrency in options.concurrencies:
                for name, system in systems.items():
                    texts = prompts(surroundings.entropy, kind, options.requests[concurrency])
                    idle.begin(system.pids())
                    loop = await system.run(texts, concurrency, options.tokens)
                    idle.end()
                    found.setdefault((kind, concurrency), {}).setdefault(name, []).append(loop)
                surroundings.say(
                    f"round {number + 1} of {options.rounds}, {kind}, {concurrency}: "
                    + ", ".join(
                        f"{name} {rounds[-1].tokens_per_s:.0f} tokens/s"
                        for name, rounds in found[kind, concurrency].items()
                    )
                )
    surroundings.say(f"CPU seconds of systems out of turn: {idle.used_s:.2f}")


class _Idle:
    """CPU that systems use while it is not their turn."""

    def __init__(self, everyone: Mapping[str, int]) -> None:
        self._everyone = everyone
        self._others: dict[str, int] = {}
        self._before: dict[str, Any] = {}
        self.used_s = 0.0

    def begin(self, busy: Mapping[str, int]) -> None:
        self._others = {name: pid for name, pid in self._everyone.items() if name not in busy}
        self._before = sample(self._others)

    def end(self) -> None:
        self.used_s += sum(cpu_between(self._before, sample(self._others)).values())


def serve_measures(found: Mapping[Case, Rounds]) -> list[Measure]:
    """Judge all cases. Pure."""
    measures: list[Measure] = []
    for (kind, concurrency), rounds in found.items():
        label = f"{kind} {concurrency}"
        for name, loops in rounds.items():
            measures += _system(f"{label}, {name}", loops)
        if OURS in rounds and TUNED in rounds:
            measures += _beside_server(label, kind, concurrency, rounds)
        if OURS in rounds and BARE in rounds:
            measures += _beside_engine(label, kind, concurrency, rounds)
        if OURS in rounds and DEFAULT in rounds:
            measures.append(_ratio(f"{label}: tokens/s of {DEFAULT}'s", rounds, DEFAULT, None))
    return measures


def _system(label: str, loops: list[Loop]) -> list[Measure]:
    rows = (
        ("tokens/s", [loop.tokens_per_s for loop in loops], "1/s"),
        ("TTFT p50", [loop.ttft_p50_ms for loop in loops], "ms"),
        ("TTFT p99", [loop.ttft_p99_ms for loop in loops], "ms"),
        ("inter-token p50", [loop.pace_p50_ms for loop in loops], "ms"),
        ("inter-token p99", [loop.gap_p99_ms for loop in loops], "ms"),
    )
    measures = []
    for text, values, unit in rows:
        spread = paired(values)
        measures.append(measure(f"{label}: {text}", spread.middle, unit, note=spread.note))
    for process in sorted({name for loop in loops for name in loop.cpu_s_per_1000}):
        spent = paired([loop.cpu_s_per_1000.get(process, 0.0) for loop in loops])
        measures.append(
            measure(f"{label}: CPU of {process}", spent.middle, "s/1000 tokens", note=spent.note)
        )
    return measures


def _beside_server(label: str, kind: str, concurrency: int, rounds: Rounds) -> list[Measure]:
    slack = "<= 5" if concurrency == 1 else "<= 0"
    return [
        _ratio(f"{label}: tokens/s of {TUNED}'s", rounds, TUNED, _TOKENS_BOUNDS[kind]),
        _difference(f"{label}: TTFT p50 above {TUNED}", rounds, TUNED, "ttft_p50_ms", slack),
        _difference(
            f"{label}: inter-token p50 above {TUNED}", rounds, TUNED, "pace_p50_ms", "<= 0"
        ),
    ]


def _beside_engine(label: str, kind: str, concurrency: int, rounds: Rounds) -> list[Measure]:
    bound = _BARE_BOUNDS.get(concurrency) if kind == "short" else None
    ttft_bound = "<= 8" if concurrency == 1 else None
    return [
        _ratio(f"{label}: tokens/s of the {BARE}'s", rounds, BARE, bound),
        _difference(f"{label}: TTFT p50 above the {BARE}", rounds, BARE, "ttft_p50_ms", ttft_bound),
    ]


def _ratio(label: str, rounds: Rounds, other: str, bound: str | None) -> Measure:
    pairs = zip(rounds[OURS], rounds[other], strict=True)
    spread = paired([mine.tokens_per_s / theirs.tokens_per_s for mine, theirs in pairs])
    return measure(label, spread.middle, "ratio", bound, spread.note)


def _difference(label: str, rounds: Rounds, other: str, name: str, bound: str | None) -> Measure:
    pairs = zip(rounds[OURS], rounds[other], strict=True)
    spread = paired([getattr(mine, name) - getattr(theirs, name) for mine, theirs in pairs])
    return measure(label, spread.middle, "ms", bound, spread.note)


def _memory(systems: Mapping[str, Loops]) -> list[Measure]:
    measures = []
    for name, system in systems.items():
        for process, pid in system.pids().items():
            if process == "supervisor":
                continue  # the others are its children
            rss, pss = rss_bytes(pid) / 2**20, pss_bytes(pid) / 2**20
            measures.append(measure(f"{name}: RSS of {process}", rss, "MiB", note=f"PSS {pss:.0f}"))
    return measures


def _raw(found: Mapping[Case, Rounds]) -> list[dict[str, Any]]:
    return [
        {
            "kind": kind,
            "concurrency": concurrency,
            "system": name,
            "rounds": [dataclasses.asdict(loop) for loop in loops],
        }
        for (kind, concurrency), rounds in found.items()
        for name, loops in rounds.items()
    ]
