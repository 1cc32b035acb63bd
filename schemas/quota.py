"""Limits of an org, and the events by which gateways share them exactly (design rule 6.13).

Owns what is limited, in which order amounts stand in events, and the arithmetic of a bucket that
refills continuously. Decides nothing: `quota_ledger.py` grants, the gateway's leases spend.
"""

from enum import IntEnum
from typing import Final

from msgspec import Struct

from schemas.operations import LimitsSet

__all__ = [
    "KINDS",
    "PARTS",
    "Kind",
    "OrgLimits",
    "QuotaDemanded",
    "QuotaGranted",
    "Reigns",
    "limits_of",
    "refilled",
]

PARTS: Final = 60_000
"""Parts of one unit: a limit of n a minute refills n parts a millisecond, in whole numbers."""


class Kind(IntEnum):
    """What has a bucket; its place in every list of amounts. New ones come last."""

    REQUESTS = 0
    COUNTS = 1
    """Requests of count_tokens: a bucket of their own, with the limit of requests."""
    INPUT = 2
    OUTPUT = 3


KINDS: Final = len(Kind)


class OrgLimits(Struct, frozen=True, kw_only=True):
    """The limits of one org in force; None = unlimited."""

    org: str
    revision: int
    """Which setting of this org's limits it is, counted from 1 in log order."""
    per_minute: tuple[int | None, ...]
    """By kind."""
    concurrency: int | None
    tokens_per_month: int | None

    @property
    def limited(self) -> bool:
        """True where there is any limit at all."""
        return self.leased or self.tokens_per_month is not None

    @property
    def leased(self) -> bool:
        """True where gateways have to share something."""
        return self.concurrency is not None or any(n is not None for n in self.per_minute)


class QuotaDemanded(Struct, frozen=True, kw_only=True):
    """A gateway tells what its lease on an org's limits has left, and what it needs.

    Its id is (gateway, org, seq): a copy, and one that is older than another, changes nothing.
    """

    gateway: str
    """Incarnation."""
    org: str
    seq: int
    """Grows by one with each demand of this gateway for this org."""
    base: int
    """The newest demand whose grant this gateway took; no older grant will be taken any more."""
    revision: int
    per_minute: tuple[int, ...]
    """The limits by kind, of that revision; -1 = unlimited."""
    concurrency: int
    """Likewise."""
    left: tuple[int, ...]
    """What the lease has left, by kind; below 0 where more was spent than it held."""
    returned: tuple[int, ...]
    """Given up just now: not in `left` any more."""
    refunded: tuple[int, ...]
    """Spent once, and given back since (a refused request, cached input)."""
    need: tuple[int, ...]
    """What requests wait for."""
    want: tuple[int, ...]
    """What the lease should hold in all, to last until the next one."""
    slots_kept: int
    """Requests in flight that this gateway may have without being told."""
    slots_needed: int


class QuotaGranted(Struct, frozen=True, kw_only=True):
    """The quota service's answer to a demand, with the state of the org's buckets behind it.

    One without an org begins the reign of a service: grants of earlier ones do not count after it.
    """

    service: str
    """Incarnation."""
    reign: int
    """Offset of the record that began its service's reign; the highest one met is in force."""
    org: str
    gateway: str
    seq: int
    at_ms: int
    """Append time of the demand: when the lease's term began at the latest."""
    levels: tuple[int, ...]
    """Parts in the org's buckets behind this grant, by kind; below 0 after an overdraft."""
    held: tuple[int, ...]
    """What the gateway's lease holds in units, counted from what the demand said was left."""
    taken: tuple[int, ...]
    """Parts that left the buckets for this grant alone; they return where it is not taken."""
    held_by_others: tuple[int, ...]
    slots: int
    """Requests in flight that this gateway may have."""
    slots_of_others: int
    short: bool
    """True where less was granted than requests wait for."""


class Reigns:
    """Which grants count, of all that stand in the log, read in order."""

    def __init__(self) -> None:
        self.newest = -1

    def counts(self, grant: QuotaGranted, offset: int) -> bool:
        """Tell whether a record is a grant that counts."""
        if not grant.org:
            self.newest = max(self.newest, offset)
            return False
        if grant.reign < self.newest:
            return False  # by a service that does not know of its successor
        self.newest = grant.reign
        return True


def limits_of(fact: LimitsSet, revision: int) -> OrgLimits:
    """Return what a fact of the control topic sets."""
    requests = fact.requests_per_minute
    return OrgLimits(
        org=fact.org,
        revision=revision,
        per_minute=(
            requests,
            requests,
            fact.input_tokens_per_minute,
            fact.output_tokens_per_minute,
        ),
        concurrency=fact.concurrency,
        tokens_per_month=fact.tokens_per_month,
    )


def refilled(level: int, limit: int, held: int, elapsed_ms: int) -> int:
    """Return a bucket's parts after a time; it and what leases hold never exceed one minute's.

    That is why no window of length w sees more than burst + rate * w spent, leases or not: what
    waits in a lease does not refill.
    """
    return min(level + limit * max(0, elapsed_ms), (limit - held) * PARTS)
