"""One org's lease at one gateway: what may be spent here and now, and what is demanded next.

Owns the decisions between two grants: spend, wait or refuse with a truthful time, when to ask for
more, what to give back, and what to do when nobody answers. Pure: times are monotonic seconds
passed in, and nothing is sent. Called by `quota.py`; the other side is `schemas/quota_ledger.py`.
"""

import math
from collections.abc import Sequence
from operator import add

from gateway.ask import LIMIT_NAMES, Ask, Lack, LimitName
from gateway.own_share import OwnShare
from schemas import limits
from schemas.quota import KINDS, PARTS, OrgLimits, QuotaDemanded, QuotaGranted, refilled

__all__ = ["OrgLease"]

_NOTHING = (0,) * KINDS
_NOBODY = (0,) * (KINDS + 1)
_RECALL_S = limits.QUOTA_RECALL_MS / 1000
_ANSWER_S = limits.QUOTA_ANSWER_MS / 1000
_PAUSE_S = limits.QUOTA_PAUSE_MS / 1000
_RENEW_S = limits.QUOTA_RENEW_MS / 1000
_SPEND_S = (limits.QUOTA_TERM_MS - limits.QUOTA_MARGIN_MS) / 1000
_KEEP_S = limits.QUOTA_KEEP_MS / 1000
_FLIGHT_RETRY_S = 1.0
"""Nobody knows when a request in flight ends."""


class OrgLease:
    """Mutable state of one org at one gateway."""

    def __init__(self, org_limits: OrgLimits, gateway: str) -> None:
        self.limits = org_limits
        self.in_flight = 0
        self.left = [0] * KINDS
        self.need = [0] * KINDS
        """Of requests that wait."""
        self.slots_needed = 0
        self._gateway = gateway
        self._seq = self._base = 0
        self._asked_s: float | None = None
        """When the demand went out that waits for its grant."""
        self._unanswered_s: float | None = None
        """When the first demand since the newest answer went out."""
        self._last_ask_s = -math.inf
        self._asked_left: list[int] = []
        self._asked_refunds = _NOTHING
        self._refunds = [0] * KINDS
        self._spent = [0] * KINDS
        """Since the last demand."""
        self._recent = [0] * KINDS
        self._peak = 0
        """Most requests in flight since the last demand."""
        self._slots = 0
        self._until_s = -math.inf
        self._levels: Sequence[int] | None = None
        self._levels_s = 0.0
        self._held: Sequence[int] = _NOTHING
        """In all leases of the org, as of the levels: it does not refill."""
        self._held_elsewhere: Sequence[int] = _NOTHING
        self._slots_elsewhere = 0
        self._recall_until_s = self._next_recall_s = -math.inf
        self._give_back = self._tell = False
        self._used_s = -math.inf
        """When a request came last."""
        self._share: OwnShare | None = None
        """What this gateway goes by while the service does not answer."""

    @property
    def away(self) -> bool:
        """True while this gateway goes by its own share."""
        return self._share is not None

    @property
    def asking(self) -> bool:
        """True while a demand waits for its answer."""
        return self._asked_s is not None

    @property
    def knows(self) -> bool:
        """True once what it says of the org's buckets rests on something."""
        return self._levels is not None or self._share is not None

    @property
    def idle(self) -> bool:
        """True where there is nothing to renew, to tell or to wait for."""
        return (
            self._asked_s is None
            and not self.in_flight
            and not self._slots
            and not any(self.left)
            and not any(self._spent)
            and not any(self._refunds)
            and not any(self.need)
            and not self.slots_needed
        )

    def set_limits(self, org_limits: OrgLimits) -> None:
        """Go by other limits from now on."""
        for kind, limit in enumerate(org_limits.per_minute):
            if limit is None:
                self.left[kind] = self._refunds[kind] = 0
        self.limits = org_limits

    def take(self, ask: Ask, now_s: float) -> Lack | None:
        """Spend what a request needs, all of it or nothing; None = it may pass.

        `may_wait` tells whether the next grants may help one that lacks something.
        """
        self._used_s = now_s
        if not self._passes(ask, now_s):
            lack = self._find_lack(ask, now_s)
            if lack is not None:
                return lack
        for kind, amount in ask.spends:
            if self.limits.per_minute[kind] is not None:
                self._spend(kind, amount)
        if ask.slot:
            self.in_flight += 1
            if self.in_flight > self._peak:
                self._peak = self.in_flight
        return None

    def lack(self, ask: Ask, now_s: float) -> Lack | None:
        """Return what keeps a request from passing; of several the one that takes longest."""
        return None if self._passes(ask, now_s) else self._find_lack(ask, now_s)

    def queue(self) -> tuple[int, ...]:
        """Return what requests wait for, by kind, and behind that the places in flight."""
        return (*self.need, self.slots_needed)

    def may_wait(self, ask: Ask, now_s: float, ahead: Sequence[int] = _NOBODY) -> bool:
        """Tell whether a request that lacks something may get it from the next grants.

        Args:
            ahead: what others wait for that came before, as `queue` told.
        """
        if self._share is not None:
            return False
        if self._levels is None or now_s >= self._until_s or self._base != self._seq:
            return True  # nothing is known, or an answer is on its way
        # A demand that is granted short makes others give back what lies idle with them.
        recalling = now_s < self._recall_until_s or now_s >= self._next_recall_s
        for kind, amount in ask.needs:
            if self.limits.per_minute[kind] is None:
                continue
            level = self._level(kind, now_s + _RECALL_S)  # it may refill while it waits
            within = self.left[kind] + self._refunds[kind] + level // PARTS - ahead[kind]
            if amount > within + (self._held_elsewhere[kind] if recalling else 0):
                return False
        if not ask.slot or self.limits.concurrency is None:
            return True
        free = self.limits.concurrency - self.in_flight - ahead[KINDS]
        return free > (0 if recalling else self._slots_elsewhere)

    def hand_back(self) -> None:
        """Give back with the next demand what no request waits for."""
        self._give_back = True

    def refused(self) -> None:
        """Tell soon what was spent: only then does the bucket refill as a client was told."""
        self._tell = any(self._spent)

    def give(self, kind: int, amount: int) -> None:
        """Give back what was spent for nothing, or estimated too high."""
        if self.limits.per_minute[kind] is not None and amount:
            self._refunds[kind] += amount
            if self._share is not None:
                self._share.spend(kind, -amount)

    def charge(self, kind: int, amount: int) -> None:
        """Spend what was produced already: the bucket may go below zero."""
        if self.limits.per_minute[kind] is not None and amount:
            self._spend(kind, amount)

    def is_due(self, now_s: float) -> bool:
        """Tell whether a demand should go out now."""
        if self._asked_s is not None or not self.limits.leased:
            return False
        since_s = now_s - self._last_ask_s
        if self._share is not None:
            return since_s >= _ANSWER_S and not self.idle
        if since_s >= _RENEW_S:
            return not self.idle
        if since_s < _PAUSE_S:
            return False
        if self._levels is None or self.slots_needed or self._may_gain(now_s):
            return True
        if self._give_back or self._tell:
            return True
        for kind, spent in enumerate(self._spent):
            is_low = spent and 2 * self.left[kind] < self._want(kind)
            if is_low and self._level(kind, now_s) >= PARTS:
                return True
        return False

    def demand(self, now_s: float) -> QuotaDemanded:
        """Return the next demand; whatever it says is as good as sent."""
        if now_s >= self._until_s:
            self._expire()
        busy = self.in_flight > 0 or now_s - self._used_s < _KEEP_S
        want = tuple(self._want(kind) if busy else 0 for kind in range(KINDS))
        returned = [0] * KINDS
        if not busy or self._give_back:
            for kind in range(KINDS):
                returned[kind] = max(0, self.left[kind] - self.need[kind])
                self.left[kind] -= returned[kind]
            if self._give_back:
                want = _NOTHING
        kept = self.in_flight + self.slots_needed
        if busy and not self._give_back:
            kept = max(self._peak, kept)
        kept = min(kept, max(self._slots, self.in_flight))
        self._slots = min(self._slots, kept)
        for kind in range(KINDS):
            self._recent[kind] = max(self._spent[kind], self._recent[kind] // 2)
        self._spent, self._peak = [0] * KINDS, self.in_flight
        self._give_back = self._tell = False
        self._seq += 1
        self._asked_s = self._last_ask_s = now_s
        if self._unanswered_s is None:
            self._unanswered_s = now_s
        self._asked_left, self._asked_refunds = list(self.left), tuple(self._refunds)
        concurrency = self.limits.concurrency
        return QuotaDemanded(
            gateway=self._gateway,
            org=self.limits.org,
            seq=self._seq,
            base=self._base,
            revision=self.limits.revision,
            per_minute=tuple(-1 if n is None else n for n in self.limits.per_minute),
            concurrency=-1 if concurrency is None else concurrency,
            left=tuple(self.left),
            returned=tuple(returned),
            refunded=self._asked_refunds,
            need=tuple(self.need),
            want=want,
            slots_kept=kept,
            slots_needed=self.in_flight + self.slots_needed if self.slots_needed else 0,
        )

    def hear(self, grant: QuotaGranted, now_s: float) -> None:
        """Take a grant for this org, of whatever gateway, in log order."""
        self._levels, self._levels_s = grant.levels, now_s
        self._held = tuple(map(add, grant.held, grant.held_by_others))
        if grant.gateway != self._gateway:
            spare = any(left > need for left, need in zip(self.left, self.need, strict=True))
            spare |= self._slots > self.in_flight + self.slots_needed
            self._give_back |= grant.short and spare
            return
        if grant.seq != self._seq or self._base == grant.seq:
            return  # an answer to what was asked again since, or a copy
        asked_s = self._last_ask_s
        self._asked_s, self._base, self._share = None, grant.seq, None
        self._unanswered_s = None
        self._until_s = asked_s + _SPEND_S
        for kind in range(KINDS):
            self.left[kind] += grant.held[kind] - self._asked_left[kind]
            self._refunds[kind] -= self._asked_refunds[kind]
        self._slots = grant.slots
        self._held_elsewhere, self._slots_elsewhere = grant.held_by_others, grant.slots_of_others
        if grant.short and now_s >= self._next_recall_s:
            self._recall_until_s = now_s + _RECALL_S
            self._next_recall_s = now_s + _RECALL_S + _ANSWER_S

    def tire(self, now_s: float, gateways: int, *, in_vain: bool = False) -> bool:
        """Ask again what was not answered; tell whether this gateway goes by its own share now.

        It does where its lease is over, or a request waited for a grant `in_vain`.
        """
        if self._asked_s is not None and now_s - self._asked_s >= _ANSWER_S:
            self._asked_s = None  # its grant is taken still, if it comes before the next demand
        if self._unanswered_s is None or self._share is not None:
            return False
        silent_s = now_s - self._unanswered_s
        if silent_s < (_ANSWER_S / 2 if in_vain else _ANSWER_S):
            return False
        if now_s < self._until_s and not in_vain:
            return False
        levels = [self._level(kind, now_s) for kind in range(KINDS)]
        self._share = OwnShare(self.limits, levels, gateways, now_s)
        return True

    def remaining(self, kind: int, now_s: float) -> tuple[int, float]:
        """Return the org's units left, as far as is known, and the seconds to a full bucket."""
        limit = self.limits.per_minute[kind]
        assert limit is not None, "asked for a limit that there is"
        if self._share is not None:
            self._share.refill(now_s)
            parts = self._share.parts(kind)
        else:
            own = self.left[kind] if now_s < self._until_s else min(0, self.left[kind])
            parts = self._level(kind, now_s) + (own + self._refunds[kind]) * PARTS
        parts = min(parts, limit * PARTS)
        return max(0, parts // PARTS), (limit * PARTS - parts) / limit / 1000

    def _may_gain(self, now_s: float) -> bool:
        """Tell whether a demand may be granted something that requests wait for."""
        if now_s >= self._until_s or now_s >= self._next_recall_s:
            return any(self.need)
        return any(
            need > self.left[kind] and self._level(kind, now_s) >= PARTS
            for kind, need in enumerate(self.need)
        )

    def _passes(self, ask: Ask, now_s: float) -> bool:
        """Tell whether a lease that lives holds all of it: the way of nearly every request."""
        if self._share is not None or now_s >= self._until_s:
            return False
        left, per_minute = self.left, self.limits.per_minute
        for kind, amount in ask.needs:
            if amount > left[kind] and per_minute[kind] is not None:
                return False
        return not ask.slot or self.limits.concurrency is None or self.in_flight < self._slots

    def _find_lack(self, ask: Ask, now_s: float) -> Lack | None:
        if self._share is not None:
            self._share.refill(now_s)
        elif now_s >= self._until_s:
            self._expire()
        worst: Lack | None = None
        for kind, amount in ask.needs:
            limit = self.limits.per_minute[kind]
            if limit is None or amount <= self._here(kind):
                continue
            if amount > limit:
                return Lack(limit=LIMIT_NAMES[kind], value=limit, retry_s=None)
            retry_s = self._retry_s(kind, amount, limit, now_s)
            if worst is None or (worst.retry_s or 0) < retry_s:
                worst = Lack(limit=LIMIT_NAMES[kind], value=limit, retry_s=retry_s)
        slots, allowed = self.limits.concurrency, self._slots
        if worst is not None or not ask.slot or slots is None:
            return worst
        if self._share is not None:
            allowed = self._share.slots
        if self.in_flight < allowed:
            return None
        return Lack(limit=LimitName.CONCURRENCY, value=slots, retry_s=_FLIGHT_RETRY_S)

    def _here(self, kind: int) -> int:
        """Return the units that may be spent here without asking anybody."""
        return self.left[kind] if self._share is None else self._share.parts(kind) // PARTS

    def _retry_s(self, kind: int, amount: int, limit: int, now_s: float) -> float:
        if self._share is not None:
            return self._share.wait_s(kind, amount)
        own = self.left[kind] + self._refunds[kind]
        missing = (amount - own) * PARTS - self._level(kind, now_s)
        return max(0.0, missing / limit / 1000)

    def _level(self, kind: int, now_s: float) -> int:
        """Return the parts in the org's bucket by now, if nobody else spends."""
        if self._levels is None:
            return (self.limits.per_minute[kind] or 0) * PARTS
        elapsed_ms = int(1000 * (now_s - self._levels_s))
        limit = self.limits.per_minute[kind] or 0
        return refilled(self._levels[kind], limit, self._held[kind], elapsed_ms)

    def _want(self, kind: int) -> int:
        limit = self.limits.per_minute[kind]
        if limit is None:
            return 0
        return max(self._recent[kind], self._spent[kind], limit // limits.QUOTA_AHEAD_SHARE)

    def _spend(self, kind: int, amount: int) -> None:
        self.left[kind] -= amount
        self._spent[kind] += amount
        if self._share is not None:
            self._share.spend(kind, amount)

    def _expire(self) -> None:
        """Spend no more of a lease whose term is over; what was overdrawn stays owed."""
        self._slots = 0
        for kind in range(KINDS):
            if self.left[kind] > 0:
                self.left[kind] = 0
