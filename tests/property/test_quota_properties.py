"""Leases on shared buckets: nothing is lost, doubled or late enough to let more than a minute's
units and their refill through."""

from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.ask import Ask
from gateway.lease import OrgLease
from schemas.operations import LimitsSet
from schemas.quota import (
    KINDS,
    PARTS,
    Kind,
    QuotaDemanded,
    QuotaGranted,
    Reigns,
    limits_of,
    refilled,
)
from schemas.quota_ledger import Ledger

GATEWAYS = 3
STEP_S = 0.01


def amounts(kind: Kind, amount: int) -> tuple[int, ...]:
    """Return an amount of one kind."""
    return tuple(amount if each == kind else 0 for each in range(KINDS))


@given(
    limit=st.integers(1, 10**6),
    moves=st.lists(st.tuples(st.integers(0, 90_000), st.integers(1, 50)), max_size=30),
)
def test_a_bucket_refills_continuously_and_never_over_its_limit(
    limit: int, moves: list[tuple[int, int]]
) -> None:
    """However a time is cut into pieces, the refill is that of the whole, in whole numbers."""
    level = at_once = 0
    for elapsed_ms, pieces in moves:
        at_once = refilled(at_once, limit, 0, elapsed_ms)
        for piece in range(pieces):
            part_ms = elapsed_ms * (piece + 1) // pieces - elapsed_ms * piece // pieces
            level = refilled(level, limit, 0, part_ms)
        assert level == at_once <= limit * PARTS


@dataclass
class World:
    """Gateways, a service and a log that loses, doubles and delays; all under one seed."""

    rng: Random
    limit: int
    kind: Kind
    concurrency: int | None
    now_s: float = 0.0
    log: list[QuotaGranted] = field(default_factory=list)
    read: list[int] = field(default_factory=lambda: [0] * GATEWAYS)
    reigns: list[Reigns] = field(default_factory=lambda: [Reigns() for _ in range(GATEWAYS)])
    travelling: list[tuple[float, QuotaDemanded]] = field(default_factory=list)
    spent: list[tuple[float, int]] = field(default_factory=list)
    deaf_until_s: list[float] = field(default_factory=lambda: [0.0] * GATEWAYS)
    """Until when each gateway reads nothing."""
    away_until_s: float = 0.0
    """Until when no service reads anything."""
    names: int = 0

    def __post_init__(self) -> None:
        """Start everything."""
        self.services: list[Ledger] = []
        self.leases = [self.new_lease() for _ in range(GATEWAYS)]
        self.begin_service()

    def new_lease(self) -> OrgLease:
        """Return the lease of a gateway that starts."""
        self.names += 1
        fact = LimitsSet(
            org="acme",
            set_ms=0,
            requests_per_minute=self.limit if self.kind is Kind.REQUESTS else None,
            input_tokens_per_minute=self.limit if self.kind is Kind.INPUT else None,
            concurrency=self.concurrency,
        )
        return OrgLease(limits_of(fact, 1), f"gateway-{self.names}")

    def begin_service(self) -> None:
        """Begin a reign; the earlier service goes on as a zombie that knows nothing of it."""
        opening = QuotaGranted(
            service=f"s{len(self.log)}",
            reign=-1,
            org="",
            gateway="",
            seq=0,
            at_ms=0,
            levels=(),
            held=(),
            taken=(),
            held_by_others=(),
            slots=0,
            slots_of_others=0,
            short=False,
        )
        self.log.append(opening)
        reign = len(self.log) - 1
        ledger, reigns = Ledger(opening.service, reign), Reigns()
        for offset, grant in enumerate(self.log[:reign]):
            if reigns.counts(grant, offset):
                ledger.recover(grant)
        self.services = [*self.services[-1:], ledger]

    def step(self, faults: bool, seconds: float = STEP_S) -> None:
        """Let a little time pass for everyone."""
        self.now_s += seconds
        now_ms = round(self.now_s * 1000)
        rng = self.rng
        due = [entry for entry in self.travelling if entry[0] <= self.now_s]
        self.travelling = [entry for entry in self.travelling if entry[0] > self.now_s]
        rng.shuffle(due)
        for _, demand in due if self.now_s >= self.away_until_s else ():
            for service in self.services:
                grant = service.handle(demand, now_ms)
                if grant is not None:
                    self.log += [grant] * (rng.choice((0, 1, 1, 1, 1, 2)) if faults else 1)
        for number, lease in enumerate(self.leases):
            self.listen(number)
            if lease.is_due(self.now_s):
                self.send(lease.demand(self.now_s), faults)
            if lease.tire(self.now_s, GATEWAYS):
                lease._share = None  # the fallback has a bound of its own, tested apart

    def listen(self, number: int) -> None:
        """Let a gateway read what it has not read, some of it, perhaps not yet."""
        if self.rng.random() < 0.3 or self.now_s < self.deaf_until_s[number]:
            return
        for offset in range(self.read[number], len(self.log)):
            grant = self.log[offset]
            if self.reigns[number].counts(grant, offset):
                self.leases[number].hear(grant, self.now_s)
        self.read[number] = len(self.log)

    def send(self, demand: QuotaDemanded, faults: bool) -> None:
        """Send a demand, once, twice or never, at once or late."""
        copies = self.rng.choice((0, 1, 1, 1, 2)) if faults else 1
        for _ in range(copies):
            late_s = self.rng.choice((0.0, 0.0, 0.02, 0.5, 6.0)) if faults else 0.0
            self.travelling.append((self.now_s + late_s, demand))

    def spend(self, number: int, amount: int) -> bool:
        """Let a request in at a gateway, or note that it waits."""
        lease = self.leases[number]
        ask = Ask(amounts=amounts(self.kind, amount))
        if lease.take(ask, self.now_s) is None:
            self.spent.append((self.now_s, amount))
            lease.need[self.kind] = 0
            return True
        lease.need[self.kind] = min(amount, self.limit)
        return False

    def fault(self) -> None:
        """Kill or pause a gateway or a service, now and then."""
        if self.rng.random() < 0.003:
            number = self.rng.randrange(GATEWAYS)
            self.leases[number] = self.new_lease()  # what the dead one held counts as spent
        if self.rng.random() < 0.005:
            self.begin_service()
        if self.rng.random() < 0.002:
            self.away_until_s = self.now_s + 7
        if self.rng.random() < 0.005:
            self.deaf_until_s[self.rng.randrange(GATEWAYS)] = self.now_s + 1.5

    def check(self) -> None:
        """Compare every window with what a bucket allows."""
        for first in range(len(self.spent)):
            total, began_s = 0, self.spent[first][0]
            for at_s, amount in self.spent[first:]:
                total += amount
                refill = self.limit * (at_s - began_s + STEP_S) / 60
                assert total <= self.limit + refill + 1e-6, (began_s, at_s, total)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), limit=st.sampled_from((1, 3, 60, 1_000)))
def test_no_window_lets_more_through_than_a_bucket_and_its_refill(seed: int, limit: int) -> None:
    """With lost, doubled and late demands, lost grants, dead gateways and zombie services."""
    world = World(Random(seed), limit, Kind.REQUESTS, None)
    for _ in range(2_500):
        world.step(faults=True)
        world.fault()
        number = world.rng.randrange(GATEWAYS)
        if world.rng.random() < 0.4:
            world.spend(number, world.rng.choice((1, 1, max(1, limit // 10))))
    world.check()
    assert world.spent or limit < 60, "something has to pass"


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32), limit=st.sampled_from((1, 7, 60)))
def test_without_faults_the_whole_bucket_is_used(seed: int, limit: int) -> None:
    """Whichever gateways requests come to, a full bucket lets its limit through, and no more."""
    world = World(Random(seed), limit, Kind.REQUESTS, None)
    for _ in range(1_200):
        world.step(faults=False)
        world.spend(world.rng.randrange(GATEWAYS), 1)
    world.check()
    assert len(world.spent) >= limit + int(limit * 12 / 60) - GATEWAYS


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), slots=st.integers(1, 9))
def test_no_more_are_in_flight_than_the_limit(seed: int, slots: int) -> None:
    """Slots move between gateways; all together never have more requests in flight."""
    world = World(Random(seed), 1_000_000, Kind.REQUESTS, slots)
    most = 0
    for _ in range(1_000):
        world.step(faults=True)
        if world.rng.random() < 0.005:
            world.begin_service()
        number = world.rng.randrange(GATEWAYS)
        lease = world.leases[number]
        if lease.in_flight and world.rng.random() < 0.5:
            lease.in_flight -= 1
        elif lease.take(Ask(slot=True), world.now_s) is None:
            lease.slots_needed = 0
        else:
            lease.slots_needed = 1
        total = sum(each.in_flight for each in world.leases)
        most = max(most, total)
        assert total <= slots
    assert most >= min(slots, 3), "slots are of use"


@settings(max_examples=30, deadline=None)
@given(
    limit=st.integers(1, 100_000),
    spends=st.lists(st.integers(1, 100_000), min_size=1, max_size=12),
    pause_ms=st.integers(0, 3_000),
)
def test_a_refused_request_passes_when_it_was_told_to_come_again(
    limit: int, spends: list[int], pause_ms: int
) -> None:
    """With nobody else about, the time told is enough; and a refusal has changed no balance."""
    world = World(Random(0), limit, Kind.INPUT, None)
    lease = world.leases[0]

    def settle(seconds: float) -> None:
        until_s = world.now_s + seconds
        while world.now_s < until_s:
            world.step(faults=False, seconds=STEP_S if seconds < 1 else 0.1)
            world.listen(0)

    for wanted in spends:
        amount = min(wanted, limit)
        ask = Ask(amounts=amounts(Kind.INPUT, amount))
        for _ in range(60):
            lack = lease.take(ask, world.now_s)
            if lack is None or not lease.may_wait(ask, world.now_s):
                break
            lease.need[Kind.INPUT] = amount
            settle(STEP_S)
        lease.need[Kind.INPUT] = 0
        if lack is not None:
            assert lack.retry_s is not None and 0 < lack.retry_s <= 60
            before = lease.remaining(Kind.INPUT, world.now_s)
            assert lease.take(ask, world.now_s) is not None
            assert lease.remaining(Kind.INPUT, world.now_s) == before
            lease.refused()
            settle(max(1, -(-lack.retry_s // 1)))
            passed = False
            for _ in range(60):
                passed = passed or lease.take(ask, world.now_s) is None
                lease.need[Kind.INPUT] = 0 if passed else amount
                settle(STEP_S)
            assert passed
        settle(pause_ms / 1000)


def test_grants_of_an_earlier_service_do_not_count_after_a_later_one_began() -> None:
    """The latest beginning that was met is in force, also where only its grants were met."""
    world = World(Random(0), 60, Kind.REQUESTS, None)
    reigns = Reigns()
    demand = world.leases[0].demand(0.0)
    old = world.services[-1].handle(demand, 0)
    world.begin_service()
    new = world.services[-1].handle(demand, 0)
    assert old is not None and new is not None and new.reign > old.reign
    assert [reigns.counts(grant, offset) for offset, grant in enumerate([old, new, old, new])] == [
        True,
        True,
        False,
        True,
    ]
