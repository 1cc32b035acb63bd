"""What the gateway bench measured of each system, and how it is judged. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.bench.measure import Measure, measure
from infra.bench.plan import LoadResult
from infra.bench.statistics import median, paired

__all__ = ["OURS", "THEIRS", "GatewayFigures", "GatewayOptions", "gateway_measures"]

OURS = "millstream"
THEIRS = "litellm"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """Sizes of the bench."""

    rounds: int = 3
    seconds: float = 10.0
    """Of each measured load."""
    stream_tokens: int = 64
    whole_tokens: int = 16
    clients: int = 64
    streams: int = 200
    rates: tuple[float, ...] = (25.0, 200.0, 1_000.0)
    open_streams: int = 1_000
    peer: bool = True


@dataclass(slots=True)
class GatewayFigures:
    """What was measured of one system, round by round."""

    raw: list[dict[str, Any]] = field(default_factory=list)
    whole_per_s: list[float] = field(default_factory=list)
    whole_per_cpu_s: list[float] = field(default_factory=list)
    """Requests per CPU second of the gateway process."""
    whole_all_cpu_ms: list[float] = field(default_factory=list)
    """CPU of all processes per request."""
    events_per_s: list[float] = field(default_factory=list)
    events_per_cpu_s: list[float] = field(default_factory=list)
    events_all_cpu_us: list[float] = field(default_factory=list)
    latency: dict[float, LoadResult] = field(default_factory=dict)
    """By requests a second."""
    rss_bytes: int = 0
    """Highest with the streams open."""
    invalid: int = 0
    """Loads in which the generator was the bottleneck."""

    def add(
        self, *, stream: bool, done: int, wall_s: float, cpu: Mapping[str, float], own: str
    ) -> None:
        """Add a round: `done` requests or events, CPU seconds by process, `own` the gateway's."""
        per_s = done / wall_s if wall_s else 0.0
        per_cpu_s = done / cpu[own] if cpu.get(own) else 0.0
        all_cpu_s = sum(cpu.values()) / max(1, done)
        if stream:
            self.events_per_s.append(per_s)
            self.events_per_cpu_s.append(per_cpu_s)
            self.events_all_cpu_us.append(1e6 * all_cpu_s)
        else:
            self.whole_per_s.append(per_s)
            self.whole_per_cpu_s.append(per_cpu_s)
            self.whole_all_cpu_ms.append(1e3 * all_cpu_s)


def gateway_measures(
    figures: Mapping[str, GatewayFigures], options: GatewayOptions, punctual: LoadResult
) -> list[Measure]:
    """Judge the platform by its own bounds and, where LiteLLM was measured, beside it."""
    ours, theirs = figures[OURS], figures[THEIRS]
    measures: list[Measure] = []
    for name, item in figures.items():
        if item.whole_per_s:
            measures += _system(name, item)
    measures += _own_bounds(ours, options, punctual)
    if theirs.whole_per_s:
        measures += _beside(ours, theirs, options)
    return measures


def _system(name: str, item: GatewayFigures) -> list[Measure]:
    rows = (
        ("requests per second", item.whole_per_s, "1/s"),
        ("requests per gateway CPU second", item.whole_per_cpu_s, "1/s"),
        ("CPU per request, all processes", item.whole_all_cpu_ms, "ms"),
        ("events per second", item.events_per_s, "1/s"),
        ("events per gateway CPU second", item.events_per_cpu_s, "1/s"),
        ("CPU per event, all processes", item.events_all_cpu_us, "us"),
    )
    measures = [
        measure(f"{name}: {text}", median(values), unit, note=paired(values).note)
        for text, values, unit in rows
    ]
    for rate, result in item.latency.items():
        for share, value in (
            ("p50", result.whole.p50),
            ("p99", result.whole.p99),
            ("p99.9", result.whole.p999),
        ):
            measures.append(
                measure(f"{name}: latency {share} at {rate:g}/s", 1e3 * (value or 0.0), "ms")
            )
        measures.append(
            measure(f"{name}: failures at {rate:g}/s", sum(result.failures.values()), "requests")
        )
    measures.append(measure(f"{name}: RSS, streams open", item.rss_bytes / 2**20, "MiB"))
    return measures


def _own_bounds(
    ours: GatewayFigures, options: GatewayOptions, punctual: LoadResult
) -> list[Measure]:
    late_s = (punctual.gaps.p99 or 0.0) - (punctual.gaps.p50 or 0.0)
    measures = [
        measure(
            f"events per gateway core, {options.streams} streams",
            median(ours.events_per_cpu_s),
            "1/s",
            ">= 20000",
        ),
        measure(
            f"lateness p99, {options.open_streams} streams of 20 events/s",
            1e3 * late_s,
            "ms",
            "<= 50",
        ),
        measure("invalid loads (generator too slow)", ours.invalid, "loads", "== 0"),
    ]
    highest = max(ours.latency, default=0.0)
    measures.append(measure("highest rate measured open-loop", highest, "1/s", ">= 200"))
    at_200 = ours.latency.get(200.0)
    if at_200 is not None:
        # The engine itself takes no time, so the whole latency is what the platform adds.
        measures += [
            measure("added p50 at 200/s", 1e3 * (at_200.whole.p50 or 0.0), "ms", "<= 5"),
            measure("added p99 at 200/s", 1e3 * (at_200.whole.p99 or 0.0), "ms", "<= 15"),
        ]
    return measures


def _beside(ours: GatewayFigures, theirs: GatewayFigures, options: GatewayOptions) -> list[Measure]:
    rows = (
        ("requests per gateway CPU second", ours.whole_per_cpu_s, theirs.whole_per_cpu_s, ">= 40"),
        ("events per gateway CPU second", ours.events_per_cpu_s, theirs.events_per_cpu_s, ">= 15"),
        ("requests per second", ours.whole_per_s, theirs.whole_per_s, ">= 10"),
        ("events per second", ours.events_per_s, theirs.events_per_s, None),
    )
    measures = []
    for text, mine, others, bound in rows:
        ratio = paired([a / b for a, b in zip(mine, others, strict=True) if b])
        measures.append(measure(f"{text}, of {THEIRS}'s", ratio.middle, "ratio", bound, ratio.note))
    for rate in options.rates:
        if rate not in ours.latency or rate not in theirs.latency:
            continue  # one of them cannot: its queue would grow without end
        mine_s, others_s = ours.latency[rate].whole.p99, theirs.latency[rate].whole.p99
        if mine_s and others_s:
            measures.append(
                measure(
                    f"latency p99 at {rate:g}/s, of {THEIRS}'s",
                    mine_s / others_s,
                    "ratio",
                    "<= 0.2",
                )
            )
    if theirs.rss_bytes:
        measures.append(
            measure(
                f"RSS with {options.open_streams} streams open, of {THEIRS}'s",
                ours.rss_bytes / theirs.rss_bytes,
                "ratio",
                "<= 0.3333",
            )
        )
    return measures
