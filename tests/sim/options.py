"""What one run does: drawn from its seed, printed with it, and widened for planted bugs.

Owns the swarm: each seed switches on some kinds of faults, so that rare pairs meet undisturbed by
the rest (Groce et al., "Swarm Testing", 2012).
"""

import random
from dataclasses import dataclass, field, replace

SEND_FAULTS = ("lose", "ack_lost", "late", "duplicate", "delay")
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
    "cancel",
    "price-change",
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
    keyed: float
    """Share of clients that send an idempotency key."""
    resumable: float
    """Share of the others that ask for a reply which they can resume."""
    choices: float
    """Share of OpenAI's clients that ask for two choices."""
    real_bytes: bool
    """Records are encoded and decoded as the product does; otherwise bytes stand for events."""
    only_clients: frozenset[int] | None = None
    """The clients that a shrunk run still has; None = all."""
    only_strikes: frozenset[int] | None = None
    """The strikes that a shrunk run still has; None = all."""

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
            f"{', late start' if self.late_start else ''}, "
            f"keyed {self.keyed}, resumable {self.resumable}, two choices {self.choices}"
            f"{', real bytes' if self.real_bytes else ''}"
        )
        if self.only_clients is not None:
            shape += f"; clients {sorted(self.only_clients)}"
        if self.only_strikes is not None:
            shape += f"; strikes {sorted(self.only_strikes)}"
        return f"seed {self.seed}: {shape}; intensity {self.intensity}; " + (
            " ".join(sorted(self.faults)) or "no faults"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """What a planted bug wants to see more of than the plain swarm gives."""

    faults: frozenset[str] = frozenset()
    intensity: float | None = None
    late_start: bool | None = None
    keyed: float | None = None
    resumable: float | None = None
    choices: float | None = None
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
        requests=20,
        workers=rng.choice((2, 2, 2, 3)),
        shuffled=rng.random() < 0.8,
        arrival_s=rng.choice((0.5, 1.0, 2.0)),
        step_s=rng.choice((0.002, 0.01, 0.03)),
        end_one_in=rng.choice((0, 8, 24)),
        max_tokens=rng.choice((2, 5, 9)),
        late_start=rng.random() < 0.3,
        lowest_token=rng.choice((0, 252)),
        keyed=rng.choice((0.0, 0.2, 0.4)),
        resumable=rng.choice((0.0, 0.3, 0.6)),
        choices=rng.choice((0.0, 0.2, 0.6)),
        real_bytes=rng.random() < 0.125,
    )
    return options if bias is None else _biased(options, bias)


def _biased(options: Options, bias: Bias) -> Options:
    wanted = {
        name: getattr(bias, name)
        for name in ("intensity", "late_start", "keyed", "resumable", "choices")
        if getattr(bias, name) is not None
    }
    return replace(options, faults=(options.faults | bias.faults) - bias.without, **wanted)
