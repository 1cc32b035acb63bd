"""A gateway's own share of an org's limits, while the quota service does not answer.

The limit divided by the gateways that live, beginning with what was last known of the bucket. What
is spent of it is owed to the bucket all the same (`lease.py`). Pure.
"""

from collections.abc import Sequence

from schemas.quota import PARTS, OrgLimits

__all__ = ["OwnShare"]


class OwnShare:
    """Mutable state: parts left of the share, by kind."""

    def __init__(
        self, org_limits: OrgLimits, levels: Sequence[int], gateways: int, now_s: float
    ) -> None:
        """Begin with an equal part of the org's levels."""
        self._limits = org_limits
        self._of = max(1, gateways)
        self._parts = [level // self._of for level in levels]
        self._at_s = now_s

    @property
    def slots(self) -> int:
        """Requests in flight that may be had; rounded up, so that none is shut out."""
        return -(-(self._limits.concurrency or 0) // self._of)

    def refill(self, now_s: float) -> None:
        """Let time pass."""
        elapsed_ms = int(1000 * (now_s - self._at_s))
        self._at_s += elapsed_ms / 1000
        for kind, limit in enumerate(self._limits.per_minute):
            full = max((limit or 0) // self._of, 1) * PARTS
            more = (limit or 0) * elapsed_ms // self._of
            self._parts[kind] = min(full, self._parts[kind] + more)

    def parts(self, kind: int) -> int:
        """Return what is left."""
        return self._parts[kind]

    def spend(self, kind: int, amount: int) -> None:
        """Take units; below zero where more was produced than there was."""
        self._parts[kind] -= amount * PARTS

    def wait_s(self, kind: int, amount: int) -> float:
        """Return how long it takes until so many units are there."""
        rate = (self._limits.per_minute[kind] or 1) / self._of
        return max(0.0, (amount * PARTS - self._parts[kind]) / rate / 1000)
