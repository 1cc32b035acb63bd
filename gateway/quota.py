"""The gateway's side of quota leases: demands sent, grants read, and requests that wait for one.

Owns one lease for each limited org that was asked for, and the background work that renews them.
What may be spent is decided in `lease.py`; orgs without limits never come here. Called by
`limiting.py`; run by the assembly, tests and the bench.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from gateway.ask import Ask, Lack
from gateway.errors import Overloaded
from gateway.lease import OrgLease
from infra.errors import LogError
from infra.metrics import Metrics
from infra.ports import Clock, LogReader, LogWriter, TopicPartition
from schemas import limits
from schemas.codec import Undecodable, decode, encode
from schemas.quota import Kind, OrgLimits, QuotaDemanded, QuotaGranted, Reigns
from schemas.topics import QUOTA_DEMANDS, QUOTA_GRANTS

__all__ = ["Quota", "Running"]

_GRANTS = TopicPartition(QUOTA_GRANTS, 0)
_TICK_S = limits.QUOTA_TICK_MS / 1000
_LOOK_S = limits.QUOTA_PAUSE_MS / 1000
"""So often a request that waits for no answer looks again: buckets refill in silence."""


class Running(Protocol):
    """A request that is charged while it runs."""

    def progress(self) -> None:
        """Charge what was produced since the last time."""


class Quota:
    """The leases of one gateway."""

    def __init__(
        self,
        *,
        clock: Clock,
        reader: LogReader,
        writer: LogWriter,
        gateway: str,
        metrics: Metrics,
        live_gateways: Callable[[], int] = lambda: 1,
    ) -> None:
        """Take the parts; `gateway` is this process's incarnation."""
        self._clock = clock
        self._reader = reader
        self._writer = writer
        self._gateway = gateway
        self._metrics = metrics
        self._live_gateways = live_gateways
        self._leases: dict[str, OrgLease] = {}
        self._active: set[str] = set()
        """Orgs whose lease is not idle."""
        self._changed: dict[str, asyncio.Event] = {}
        """Where requests of an org wait."""
        self._waiting = 0
        self._stirred = asyncio.Event()
        self._running: set[Running] = set()
        self._sending: set[asyncio.Task[None]] = set()
        """At most one for each lease, until its writer has taken it."""
        self._reigns = Reigns()
        self._assigned = False

    def lease(self, org_limits: OrgLimits) -> OrgLease:
        """Return the org's lease, under the limits in force."""
        lease = self._leases.get(org_limits.org)
        if lease is None:
            lease = self._leases[org_limits.org] = OrgLease(org_limits, self._gateway)
        elif lease.limits is not org_limits:
            lease.set_limits(org_limits)
        return lease

    def hopeless(self, lease: OrgLease, ask: Ask) -> Lack | None:
        """Return what a request lacks where waiting would not help; spends nothing."""
        now_s = self._clock.monotonic_s()
        lack = lease.lack(ask, now_s)
        if lack is None or lease.may_wait(ask, now_s, lease.queue()):
            return None
        self._refused(lease, now_s)
        return lack

    def take_now(self, lease: OrgLease, ask: Ask) -> bool:
        """Spend what a request needs where the lease holds it: the way of nearly every request."""
        now_s = self._clock.monotonic_s()
        if lease.take(ask, now_s) is not None:
            return False
        if lease.is_due(now_s):
            self._demand(lease, now_s)
        self._stir(lease)
        return True

    async def take(self, lease: OrgLease, ask: Ask) -> Lack | None:
        """Spend what a request needs, at once or from the next grants; else what it lacks.

        Raises: Overloaded where too many wait.
        """
        now_s = self._clock.monotonic_s()
        lack = lease.take(ask, now_s)
        until_s, ahead = now_s + limits.QUOTA_ANSWER_MS / 1000, lease.queue()
        if self._waiting >= limits.GATEWAY_INFLIGHT_MAX:
            raise Overloaded("Overloaded: too many requests wait for their org's limits")
        self._waiting += 1
        _wait_for(lease, ask, 1)
        try:
            while lack is not None and lack.retry_s is not None:
                if not lease.may_wait(ask, now_s, ahead):
                    break
                if lease.is_due(now_s):
                    self._demand(lease, now_s)
                self._stir(lease)
                await self._wait(lease, until_s - now_s)
                now_s = self._clock.monotonic_s()
                if now_s >= until_s:
                    self._tire(lease, now_s, in_vain=True)
                    return lease.take(ask, now_s)
                lack = lease.take(ask, now_s)
        finally:
            self._waiting -= 1
            _wait_for(lease, ask, -1)
        if lack is not None:
            self._refused(lease, now_s)
        return lack

    def started(self, running: Running) -> None:
        """Charge a request while it runs, until `ended`."""
        self._running.add(running)

    def ended(self, running: Running, lease: OrgLease) -> None:
        """Charge a request no more; its slot is free for those that wait."""
        self._running.discard(running)
        self.wake(lease)

    def wake(self, lease: OrgLease) -> None:
        """Let requests that wait look again: something was given back."""
        changed = self._changed.get(lease.limits.org)
        if changed is not None:
            changed.set()
        self._stir(lease)

    async def run(self) -> None:
        """Read grants and renew leases, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_for_ever())
            group.create_task(self._tick_for_ever())

    async def stop(self) -> None:
        """Give back what leases hold: nobody here will spend it."""
        now_s = self._clock.monotonic_s()
        for org in self._active:
            self._leases[org].hand_back()
            self._demand(self._leases[org], now_s)
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def read_once(self) -> None:
        """Take the grants that have come. Raises LogError."""
        if not self._assigned:
            bounds = (await self._reader.bounds([_GRANTS]))[_GRANTS]
            first = max(bounds.start, bounds.end - limits.QUOTA_REIGN_RECORDS)
            self._reader.assign({_GRANTS: first})
            self._assigned = True
        records = await self._reader.poll(
            timeout_ms=limits.FETCH_WAIT_MS, max_records=limits.POLL_RECORDS_MAX
        )
        for record in records:
            try:
                grant = decode(record.value, QuotaGranted)
            except Undecodable:
                continue
            if self._reigns.counts(grant, record.offset):
                self._hear(grant)

    def tick(self) -> None:
        """Charge what was produced, renew what is due, and give up on what is not answered."""
        for running in tuple(self._running):
            running.progress()
        now_s = self._clock.monotonic_s()
        for org in tuple(self._active):
            lease = self._leases[org]
            self._tire(lease, now_s)
            if lease.is_due(now_s):
                self._demand(lease, now_s)
            if lease.idle:
                self._active.discard(org)

    async def _read_for_ever(self) -> None:
        while True:
            try:
                await self.read_once()
            except LogError:
                self._assigned = False
                await asyncio.sleep(limits.RETRY_PAUSE_MS / 1000)

    async def _tick_for_ever(self) -> None:
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            while self._active:
                self.tick()
                await asyncio.sleep(_TICK_S)

    def _hear(self, grant: QuotaGranted) -> None:
        lease = self._leases.get(grant.org)
        if lease is None:
            return
        now_s = self._clock.monotonic_s()
        lease.hear(grant, now_s)
        self.wake(lease)
        if lease.is_due(now_s):
            self._demand(lease, now_s)

    def _demand(self, lease: OrgLease, now_s: float) -> None:
        """Send the next demand; one that is lost is asked again."""
        demand = lease.demand(now_s)
        self._metrics.count("quota_demands")
        self._stir(lease)
        sending = asyncio.create_task(self._send(demand))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)

    def _refused(self, lease: OrgLease, now_s: float) -> None:
        lease.refused()
        if lease.is_due(now_s):
            self._demand(lease, now_s)

    async def _send(self, demand: QuotaDemanded) -> None:
        with suppress(LogError):
            await self._writer.enqueue(QUOTA_DEMANDS, 0, encode(demand), key=demand.org.encode())

    def _tire(self, lease: OrgLease, now_s: float, *, in_vain: bool = False) -> None:
        if lease.tire(now_s, self._live_gateways(), in_vain=in_vain):
            self._metrics.count("quota_unanswered")
            self.wake(lease)

    def _stir(self, lease: OrgLease) -> None:
        org_limits = lease.limits
        if org_limits.org not in self._active and org_limits.leased:
            self._active.add(org_limits.org)
            self._stirred.set()

    async def _wait(self, lease: OrgLease, timeout_s: float) -> None:
        """Wait until a grant or something given back may have changed what is left."""
        changed = self._changed.setdefault(lease.limits.org, asyncio.Event())
        changed.clear()
        try:
            async with asyncio.timeout(timeout_s if lease.asking else min(timeout_s, _LOOK_S)):
                await changed.wait()
        except TimeoutError:
            pass


def _wait_for(lease: OrgLease, ask: Ask, sign: int) -> None:
    """Note what a request waits for, or that it does no more."""
    for kind, amount in enumerate(ask.amounts):
        lease.need[kind] += sign * amount
    lease.need[Kind.OUTPUT] += sign * ask.some_output
    lease.slots_needed += sign * ask.slot
