"""The quota state machine: what one demand does to an org's buckets, and what it is granted.

Pure; time is the append time of demands. Run by the stream-app, one org after the other, in log
order. Every grant carries the buckets' state behind it, so that the grants are the changelog: a
successor continues from what it reads back (`recover`).

What it holds to, whatever is lost, doubled, late or dead:
- buckets and leases of an org together never hold more than one minute's units;
- a lease that was not renewed within its term counts as spent; slots are free again then;
- a demand that is no newer than the lease's last one changes nothing;
- a grant that its gateway did not take is taken back by the gateway's next demand.
"""

from msgspec import Struct, field

from schemas import limits
from schemas.quota import KINDS, PARTS, QuotaDemanded, QuotaGranted, refilled

__all__ = ["Ledger"]

_NOTHING = (0,) * KINDS


class _Lease(Struct, kw_only=True):
    """What one gateway holds."""

    seq: int
    expires_ms: int
    held: tuple[int, ...]
    taken: tuple[int, ...]
    slots: int


class _Account(Struct, kw_only=True):
    """One org's buckets and leases."""

    levels: list[int]
    at_ms: int
    revision: int = 0
    per_minute: tuple[int, ...] = (-1,) * KINDS
    leases: dict[str, _Lease] = field(default_factory=dict)


class Ledger:
    """Mutable state: the accounts of all limited orgs that were heard of."""

    def __init__(self, service: str, reign: int, *, begin_full: bool = True) -> None:
        """Begin a reign; an org that nothing was recovered of begins with full buckets or none."""
        self._service = service
        self._reign = reign
        self._begin_full = begin_full
        self._accounts: dict[str, _Account] = {}

    def recover(self, grant: QuotaGranted) -> None:
        """Take over what a predecessor granted, in log order, before the first demand."""
        account = self._accounts.setdefault(grant.org, _Account(levels=[], at_ms=0))
        account.levels, account.at_ms = list(grant.levels), grant.at_ms
        account.leases[grant.gateway] = _Lease(
            seq=grant.seq,
            expires_ms=grant.at_ms + limits.QUOTA_TERM_MS,
            held=grant.held,
            taken=grant.taken,
            slots=grant.slots,
        )

    def handle(self, demand: QuotaDemanded, append_time_ms: int) -> QuotaGranted | None:
        """Return the grant for a demand; None for a copy or one that a newer one overtook."""
        account = self._account(demand, append_time_ms)
        lease = account.leases.get(demand.gateway)
        if lease is not None and demand.seq <= lease.seq:
            return None
        lives = lease is not None and lease.expires_ms > account.at_ms
        _settle(account, demand, lease if lives else None)
        told_twice = lease is not None and not lives and lease.seq != demand.base
        held, taken = _grant(account, demand, lives, told_twice)
        slots, slots_of_others = _slots(account, demand)
        account.leases[demand.gateway] = _Lease(
            seq=demand.seq,
            expires_ms=account.at_ms + limits.QUOTA_TERM_MS,
            held=held,
            taken=taken,
            slots=slots,
        )
        return QuotaGranted(
            service=self._service,
            reign=self._reign,
            org=demand.org,
            gateway=demand.gateway,
            seq=demand.seq,
            at_ms=account.at_ms,
            levels=tuple(account.levels),
            held=held,
            taken=taken,
            held_by_others=_held(account, demand.gateway),
            slots=slots,
            slots_of_others=slots_of_others,
            short=slots < demand.slots_needed or any(map(int.__lt__, held, demand.need)),
        )

    def _account(self, demand: QuotaDemanded, now_ms: int) -> _Account:
        """Return the org's account as it stands now, under the newest limits known."""
        account = self._accounts.get(demand.org)
        if account is None:
            self._forget(now_ms)
            levels = [] if self._begin_full else [0] * KINDS
            account = self._accounts[demand.org] = _Account(levels=levels, at_ms=now_ms)
        if demand.revision > account.revision:
            account.levels = _levels(account, demand.per_minute)
            account.revision, account.per_minute = demand.revision, demand.per_minute
        _advance(account, now_ms)
        return account

    def _forget(self, now_ms: int) -> None:
        """Drop the accounts that are as full as new ones, once there are too many."""
        if len(self._accounts) < limits.QUOTA_ORGS_MAX:
            return
        idle_ms = now_ms - limits.QUOTA_RETENTION_MS
        for org in [org for org, held in self._accounts.items() if held.at_ms < idle_ms]:
            del self._accounts[org]


def _settle(account: _Account, demand: QuotaDemanded, lease: _Lease | None) -> None:
    """Take back what was given up, and a grant that its gateway did not take."""
    if lease is None:
        return  # it counts as spent
    kept = tuple(max(0, left) for left in demand.left)
    lease.held, untaken = kept, demand.base != lease.seq
    for kind in range(KINDS):
        account.levels[kind] += demand.returned[kind] * PARTS
        if untaken:
            account.levels[kind] += lease.taken[kind]
        _cap(account, kind)


def _grant(
    account: _Account, demand: QuotaDemanded, lives: bool, told_twice: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return what the lease holds from now on, and the parts that this took.

    Refunds that were perhaps told before, with a lease that ran out since, are left out.
    """
    others = sum(
        name != demand.gateway and lease.expires_ms > account.at_ms
        for name, lease in account.leases.items()
    )
    held, taken = [], []
    for kind in range(KINDS):
        before = account.levels[kind]
        if account.per_minute[kind] < 0:
            held.append(0)
            taken.append(0)
            continue
        left = demand.left[kind] if lives else min(demand.left[kind], 0)
        refunded = 0 if told_twice else demand.refunded[kind]
        account.levels[kind] += (refunded + min(left, 0)) * PARTS
        _cap(account, kind)
        kept = max(left, 0)
        available = max(0, account.levels[kind] // PARTS)
        lacking = max(0, demand.need[kind] - kept)
        ahead = min(demand.want[kind] - kept, available // (2 + others))
        extra = min(available, max(lacking, ahead, 0))
        account.levels[kind] -= extra * PARTS
        held.append(kept + extra)
        taken.append(before - account.levels[kind])
    return tuple(held), tuple(taken)


def _levels(account: _Account, per_minute: tuple[int, ...]) -> list[int]:
    """Return the levels under new limits: a kind that had none begins full."""
    known = account.levels or [0] * KINDS
    fresh = not account.levels
    return [
        limit * PARTS if fresh or (before < 0 and account.revision) else known[kind]
        for kind, (before, limit) in enumerate(zip(account.per_minute, per_minute, strict=True))
    ]


def _advance(account: _Account, now_ms: int) -> None:
    """Let time pass: leases run out one after the other, and buckets refill meanwhile."""
    ends = sorted({lease.expires_ms for lease in account.leases.values() if any(lease.held)})
    for until_ms in (*(end for end in ends if end < now_ms), now_ms):
        elapsed_ms = until_ms - account.at_ms
        if elapsed_ms > 0:
            held = _held(account, None)
            for kind, limit in enumerate(account.per_minute):
                account.levels[kind] = refilled(
                    account.levels[kind], max(0, limit), held[kind], elapsed_ms
                )
            account.at_ms = until_ms
        for lease in account.leases.values():
            if lease.expires_ms <= account.at_ms:
                lease.held, lease.slots = _NOTHING, 0
    gone_ms = account.at_ms - limits.QUOTA_RETENTION_MS
    if any(lease.expires_ms < gone_ms for lease in account.leases.values()):
        account.leases = {
            name: lease for name, lease in account.leases.items() if lease.expires_ms >= gone_ms
        }


def _cap(account: _Account, kind: int) -> None:
    held = sum(lease.held[kind] for lease in account.leases.values())
    limit = max(0, account.per_minute[kind])
    account.levels[kind] = refilled(account.levels[kind], limit, held, 0)


def _held(account: _Account, but: str | None) -> tuple[int, ...]:
    """Return what living leases hold, by kind, those of one gateway left out."""
    leases = [lease for name, lease in account.leases.items() if name != but]
    return tuple(sum(lease.held[kind] for lease in leases) for kind in range(KINDS))


def _slots(account: _Account, demand: QuotaDemanded) -> tuple[int, int]:
    """Return how many requests in flight a gateway may have, and those of all others."""
    others = sum(lease.slots for name, lease in account.leases.items() if name != demand.gateway)
    if demand.concurrency < 0:
        return 0, others
    free = max(0, demand.concurrency - others)
    used = min(free, max(demand.slots_kept, demand.slots_needed))
    ahead = (free - used) // 4 if demand.slots_needed or demand.slots_kept else 0
    return used + ahead, others
