"""What goes wrong and when: fates of sends, polls, commits and inserts, drawn from the seed.

Owns chances and sizes of faults; the memory log carries them out. Crashes, pauses and clients'
manners are drawn by `chaos.py`.
"""

import random
from collections.abc import Callable

from infra.memory import CommitFate, InsertFault, PollFate, SendFate
from infra.memory.faults import DELIVER, POLL, TAKE
from infra.ports import TopicPartition
from tests.sim.options import SEND_FAULTS, Options
from tests.sim.strikes import Strikes

SEND_BOUND_MS = 1_500
"""How long a send may take here; ten seconds in the product."""
SESSION_MS = 2_000

_SEND_CHANCE = {
    "requests": 0.05,
    "replies": 0.015,
    "closes": 0.12,
    "claims": 0.08,
    "usage": 0.06,
    "status": 0.02,
}
_DELAY_CHANCE = {
    "requests": 0.3,
    "replies": 0.15,
    "closes": 0.3,
    "claims": 0.3,
    "usage": 0.15,
    "status": 0.05,
}


class SeededFaults:
    """Implements `infra.memory.FaultPlan`, and draws the faults of the usage store."""

    def __init__(self, options: Options, now_s: Callable[[], float], strikes: Strikes) -> None:
        self._allows = strikes.allows
        self._random = random.Random(f"faults/{options.seed}")
        self._options = options
        self._poll_chance = 0.02 * options.intensity
        self._tails_fail = options.has("tail-stall")
        self._polls_fail = options.has("poll-stall") or options.has("poll-rebalance")
        self._now_s = now_s
        self.active = True
        self.quiet_from_s = 0.0
        """When the last consequence of a fault that was drawn so far is over."""
        self.on_send: Callable[[str, TopicPartition, bytes], None] = lambda *sent: None
        self._send_chances: dict[str, list[tuple[str, float]]] = {}
        """By writer: how likely each kind of fault is."""
        self._kinds = tuple(kind for kind in SEND_FAULTS if options.has(f"send-{kind}"))

    def send(self, writer: str, place: TopicPartition, value: bytes) -> SendFate:
        """Decide on one record."""
        if not self.active:
            return DELIVER
        self.on_send(writer, place, value)
        chances = self._send_chances.get(writer)
        if chances is None:
            chances = self._send_chances[writer] = self._chances_of(writer.rpartition(":")[2])
        draw = self._random.random
        for kind, chance in chances:
            if draw() < chance:
                fate = self._fate(kind)
                return fate if self._allows() else DELIVER
        return DELIVER

    def _chances_of(self, purpose: str) -> list[tuple[str, float]]:
        intensity = self._options.intensity
        delay, other = _DELAY_CHANCE.get(purpose, 0.0), _SEND_CHANCE.get(purpose, 0.0)
        return [(kind, (delay if kind == "delay" else other) * intensity) for kind in self._kinds]

    def poll(self, reader: str, group: str | None) -> PollFate:
        """Decide on one poll."""
        if not self.active or (not self._tails_fail if group is None else not self._polls_fail):
            return POLL
        draw, chance = self._random.random(), self._poll_chance
        if draw >= 2 * chance:
            return POLL
        has, fate = self._options.has, POLL
        if draw < chance:
            if has("tail-stall" if group is None else "poll-stall"):
                fate = PollFate(stall_ms=self._stall_ms())
        elif group is not None and has("poll-rebalance"):
            rebalances = self._random.choice((1, 1, 2))
            fate = PollFate(rebalances=rebalances, scatter=draw < 1.5 * chance)
        return fate if fate is not POLL and self._allows() else POLL

    def commit(self, reader: str, group: str) -> CommitFate:
        """Decide on one commit."""
        if not self.active:
            return TAKE
        for kind in ("stale", "lose", "ack_lost"):
            if self._options.has(f"commit-{kind}") and self._strikes(0.06):
                return CommitFate(kind=kind)
        if self._options.has("commit-stall") and self._strikes(0.06):
            return CommitFate(stall_ms=self._stall_ms())
        return TAKE

    def insert(self) -> InsertFault:
        """Decide on one insert into the usage store."""
        delay_s, fails = 0.0, False
        if self.active and self._options.has("store-slow") and self._strikes(0.3):
            delay_s = self._random.choice((0.1, 1.0, 3.0))
        if self.active and self._options.has("store-unknown") and self._strikes(0.3):
            fails = True
        self._note(delay_s)
        stored = not fails or self._random.random() < 0.5
        return InsertFault(delay_s=delay_s, fails=fails, stored=stored)

    def engine_stall_s(self) -> float:
        """Decide for how long an engine stands still after a step; mostly not at all."""
        if not (self.active and self._options.has("engine-stall") and self._strikes(0.01)):
            return 0.0
        stall_s = self._random.choice((0.3, 1.0, 3.0, 8.0))
        self._note(stall_s)
        return stall_s

    def _strikes(self, chance: float) -> bool:
        return self._random.random() < chance * self._options.intensity and self._allows()

    def _stall_ms(self) -> int:
        stall_ms = self._random.choice((20, 200, 1_000, 3_000))
        self._note(stall_ms / 1_000)
        return stall_ms

    def _fate(self, kind: str) -> SendFate:
        choice = self._random.choice
        if kind == "delay":
            land_ms, ack_ms = choice((1, 5, 30, 300, 2_000)), choice((0, 0, 5, 300, 2_000))
            self._note((land_ms + ack_ms) / 1_000)
            return SendFate(land_ms=land_ms, ack_ms=ack_ms)
        late_ms = choice((1, 50, 500, 3_000, 6_000))
        self._note((SEND_BOUND_MS + late_ms) / 1_000)
        land_ms = choice((0, 0, 20, 400))
        if kind == "lose":
            return SendFate(kind="lose")
        if kind == "ack_lost":
            return SendFate(kind="ack_lost", land_ms=land_ms)
        if kind == "late":
            return SendFate(kind="late", late_ms=late_ms)
        return SendFate(kind="duplicate", late_ms=late_ms, land_ms=land_ms)

    def _note(self, lasts_s: float) -> None:
        self.quiet_from_s = max(self.quiet_from_s, self._now_s() + lasts_s)
