"""What a load process is asked to do and what it answers; one JSON line each.

Owns the messages between the benches and `python -m infra.bench.load`, and those of the engine
alone (`python -m engine_workers.bench`) and of parsing alone (`python -m gateway.bench`).
"""

from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "EngineAnswer",
    "EngineQuestion",
    "EngineReply",
    "Latencies",
    "LoadPlan",
    "LoadResult",
    "ParseAnswer",
]

GENERATOR_BUSY_MAX = 0.85
"""Share of a core above which the load generator may be what is measured."""
GENERATOR_LAG_MS_MAX = 25.0
"""Lateness (p99) of the generator's own timers above which its latencies mean little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """One measured load on one address."""

    host: str
    port: int
    path: str
    headers: dict[str, str]
    bodies: tuple[str, ...]
    """Request bodies, taken in turn and again from the first."""
    keys: tuple[str, ...] = ()
    """Idempotency keys: one for each body, or none at all."""
    mode: Literal["closed", "open", "hold"]
    """closed: `concurrency` clients, each asks again at once. open: `rate` requests a second
    whatever comes back. hold: `concurrency` streams stay open until the next line on standard
    input, then all leave at once."""
    tokens: int = 1
    """Tokens that each reply has."""
    concurrency: int = 1
    requests: int = 0
    """closed: how many in all; 0 = for `duration_s`."""
    duration_s: float = 0.0
    rate: float = 0.0
    connects_per_s: float = 2_000.0
    """hold: how fast streams are opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Percentiles in seconds; nan (null in JSON) where nothing was measured."""

    count: int = 0
    p50: float | None = None
    p99: float | None = None
    p999: float | None = None
    highest: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What one load met."""

    wall_s: float
    completed: int
    failures: dict[str, int] = field(default_factory=dict)
    events: int = 0
    """`data:` events of all streams."""
    reads: int = 0
    """Reads that ended events: below `events` where a server or the network joined some."""
    body_bytes: int = 0
    first: Latencies = Latencies()
    """To the first text (a stream) or byte (a body), from when the request was due."""
    whole: Latencies = Latencies()
    """To the end of the body, from when the request was due."""
    gaps: Latencies = Latencies()
    """Between two reads with events or comments of one stream."""
    pace: Latencies = Latencies()
    """Per stream: time from first to last text over the tokens between."""
    own_cpu_s: float = 0.0
    own_lag: Latencies = Latencies()
    """How late the generator's own timers rang."""

    @property
    def is_valid(self) -> bool:
        """Tell whether the generator was not the bottleneck."""
        busy = self.own_cpu_s / self.wall_s if self.wall_s else 0.0
        lag_ms = 1_000 * (self.own_lag.p99 or 0.0)
        return busy <= GENERATOR_BUSY_MAX and lag_ms <= GENERATOR_LAG_MS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineQuestion:
    """A closed loop for the engine alone: all prompts, `concurrency` at a time."""

    prompts: tuple[str, ...]
    concurrency: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReply:
    """When one reply's tokens came."""

    first_s: float
    gaps_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAnswer:
    """What the loop met."""

    wall_s: float
    cpu_s: float
    replies: tuple[EngineReply, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseAnswer:
    """What reading a body costs, by dialect."""

    body_bytes: dict[str, int]
    us_per_body: dict[str, tuple[float, ...]]
    """CPU time of one body in each round, in microseconds."""
