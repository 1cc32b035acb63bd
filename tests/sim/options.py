"""What one run does: drawn from its seed, printed with it, and widened for planted bugs.

Owns the swarm: each seed switches on some kinds of faults, so that rare pairs meet undisturbed by
the rest (Groce et al., "Swarm Testing", 2012).
"""

import random
from dataclasses import dataclass, field

SEND_FAULTS = ("lose", "ack_lost", "late", "duplicate", "delay")
PURPOSES = ("requests", "replies", "closes", "usage", "status")
COMMIT_FAULTS = ("stale", "lose", "ack_lost", "stall")
OTHER_FAULTS = (
    "poll-stall",
    "tail-stall",
    "poll-rebalance",
    "rebalance",
    "rebalance-twice",
    "worker-crash",
    "crash-again",
    "drain",
    "engine-stall",
    "crash-after-send",
    "worker-pause",
    "gateway-crash",
    "sink-crash",
    "store-slow",
    "store-unknown",
    "slow-client",
    "disconnect",
    "clock-skew",
    "clock-step",
    "tight-limits",
)
KINDS = (
    *(f"send-{fault}" for fault in SEND_FAULTS),
    *(f"commit-{fault}" for fault in COMMIT_FAULTS),
    *OTHER_FAULTS,
)
"""All kinds of faults that a seed can switch on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything about one run that is not drawn while it runs."""

    seed: int
    faults: frozenset[str]
    """Of `KINDS`."""
    intensity: float
    """Factor on the chance of each fault."""
    requests: int
    workers: int
    gateways: int = 2
    shuffled: bool
    """Ready handles run in a drawn order, else first come first served."""
    arrival_s: float
    """Requests arrive within this time."""
    step_s: float
    end_one_in: int
    max_tokens: int
    lowest_token: int
    """Ids below are never made: what is left then are pieces of text that complete stop strings,
    also over two tokens."""
    late_start: bool
    """A worker joins in the middle of the load."""

    def has(self, fault: str) -> bool:
        """Tell whether a kind of fault is switched on."""
        return fault in self.faults

    def __str__(self) -> str:
        shape = (
            f"{self.requests} requests in {self.arrival_s:.1f} s, {self.workers} workers, "
            f"{self.gateways} gateways, step {self.step_s * 1000:.0f} ms, "
            f"max {self.max_tokens} tokens from {self.lowest_token} on, "
            f"ends 1 in {self.end_one_in}, "
            f"{'shuffled' if self.shuffled else 'in order'}"
            f"{', late start' if self.late_start else ''}"
        )
        return f"seed {self.seed}: {shape}; intensity {self.intensity}; " + (
            " ".join(sorted(self.faults)) or "no faults"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """What a planted bug wants to see more of than the plain swarm gives."""

    faults: frozenset[str] = frozenset()
    intensity: float | None = None
    late_start: bool | None = None
    without: frozenset[str] = field(default=frozenset())


def draw(seed: int, bias: Bias | None = None) -> Options:
    """Return the options of a seed."""
    rng = random.Random(f"options/{seed}")
    share = rng.choice((0.15, 0.3, 0.5))
    faults = frozenset(kind for kind in KINDS if rng.random() < share)
    options = Options(
        seed=seed,
        faults=faults,
        intensity=rng.choice((0.5, 1.0, 2.0)),
        requests=rng.randint(20, 22),
        workers=rng.choice((2, 2, 2, 3)),
        shuffled=rng.random() < 0.8,
        arrival_s=rng.choice((0.5, 2.0, 4.0)),
        step_s=rng.choice((0.002, 0.01, 0.03)),
        end_one_in=rng.choice((0, 8, 24)),
        max_tokens=rng.choice((4, 8, 12)),
        late_start=rng.random() < 0.3,
        lowest_token=rng.choice((0, 252)),
    )
    return options if bias is None else _biased(options, bias)


def _biased(options: Options, bias: Bias) -> Options:
    return Options(
        seed=options.seed,
        faults=(options.faults | bias.faults) - bias.without,
        intensity=options.intensity if bias.intensity is None else bias.intensity,
        requests=options.requests,
        workers=options.workers,
        shuffled=options.shuffled,
        arrival_s=options.arrival_s,
        step_s=options.step_s,
        end_one_in=options.end_one_in,
        max_tokens=options.max_tokens,
        lowest_token=options.lowest_token,
        late_start=options.late_start if bias.late_start is None else bias.late_start,
    )
