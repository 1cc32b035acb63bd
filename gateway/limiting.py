"""One request of a limited org: what it takes from the limits, and when it gives something back.

Owns the order (the month's tokens, requests and places in flight, input tokens), the words of a
refusal, and the corrections at the reply's end. Leases stand in `quota.py`. Made by the handlers
for orgs with limits alone.
"""

import math

from gateway.ask import Ask, Lack, LimitName
from gateway.call import Call
from gateway.deps import Deps
from gateway.errors import LimitReached, QuotaExhausted
from gateway.lease import OrgLease
from gateway.limit_headers import Left, headers_of
from gateway.reader import Followed
from gateway.totals import TotalsView
from schemas import limits
from schemas.quota import KINDS, Kind, OrgLimits
from schemas.usage import month_of

__all__ = ["Admission", "require_month"]

_COUNT = Ask(amounts=tuple(int(kind == Kind.COUNTS) for kind in range(KINDS)))
_ENTER = Ask(
    amounts=tuple(int(kind == Kind.REQUESTS) for kind in range(KINDS)),
    some_output=True,
    slot=True,
)
_WORDS = {
    LimitName.REQUESTS: "{} requests per minute",
    LimitName.INPUT: "{} input tokens per minute",
    LimitName.OUTPUT: "{} output tokens per minute",
    LimitName.CONCURRENCY: "{} concurrent requests",
}
_RETRY_S_MAX = 60
"""SDKs sleep as long as they are told to."""


class Admission:
    """Mutable: how far one request has come."""

    __slots__ = (
        "_call",
        "_deps",
        "_followed",
        "_input",
        "_lease",
        "_limits",
        "_output",
        "_over_s",
        "_spent",
    )

    def __init__(self, call: Call, deps: Deps, org_limits: OrgLimits, *, counts: bool) -> None:
        """Let a call's answer tell of the limits; `counts`: it only counts tokens."""
        self._call, self._deps, self._limits = call, deps, org_limits
        self._lease: OrgLease = deps.quota.lease(org_limits)
        self._spent: Ask | None = None
        self._input: int | None = None
        self._output = 0
        self._over_s = math.inf
        self._followed: Followed | None = None
        dialect = call.dialect
        call.limit_headers = lambda: headers_of(
            dialect, deps.clock.now_ms(), _left(self._lease, counts, deps.clock.monotonic_s())
        )

    @classmethod
    def of(cls, call: Call, deps: Deps, org: str, *, counts: bool = False) -> "Admission | None":
        """Return the admission of a call; None for orgs without limits."""
        org_limits = deps.control.limits.get(org)
        if org_limits is None or not org_limits.limited:
            return None
        return cls(call, deps, org_limits, counts=counts)

    def precheck(self, *, counts: bool = False) -> None:
        """Refuse before anything is read what has to be refused. Raises as `enter` does."""
        if not counts:
            self._require_month()
        lack = self._deps.quota.hopeless(self._lease, _COUNT if counts else _ENTER)
        if lack is not None:
            raise self._refusal(lack)

    async def enter(self, *, counts: bool = False) -> None:
        """Take a request, and a place in flight; once. Raises LimitReached, QuotaExhausted."""
        if self._spent is not None:
            return
        if not counts:
            self._require_month()
        ask = _COUNT if counts else _ENTER
        if not self._deps.quota.take_now(self._lease, ask):
            await self._wait_for(ask)
        self._spent = ask

    async def begin(self, prompt_tokens: int) -> None:
        """Take everything that a request of so many tokens needs; once. Raises LimitReached."""
        if self._spent is None:
            await self.enter()
        if self._input is not None:
            return
        if self._limits.per_minute[Kind.INPUT] is not None:
            ask = Ask(amounts=(0, 0, prompt_tokens, 0))
            if not self._deps.quota.take_now(self._lease, ask):
                await self._wait_for(ask)
        self._input = prompt_tokens

    def follow(self, followed: Followed) -> None:
        """Keep what was taken until the reply's end is read back, and correct it then."""
        self._followed, asked = followed, followed.request
        lasts_ms = asked.deadline_ms - asked.header.created_ms + limits.CLOSE_RETRY_MS
        self._over_s = self._deps.clock.monotonic_s() + lasts_ms / 1000
        before = followed.on_end

        def on_end(ended: Followed) -> None:
            if before is not None:
                before(ended)
            self._settle(ended)

        followed.on_end = on_end
        self._deps.quota.started(self)
        if followed.end_offset is not None:
            self._settle(followed)

    def release(self) -> None:
        """Give everything back: the request was refused, or started no work of its own."""
        if self._followed is not None or self._spent is None:
            return
        if self._input is not None:
            self._lease.give(Kind.INPUT, self._input)
        for kind, amount in enumerate(self._spent.amounts):
            self._lease.give(kind, amount)
        self._lease.in_flight -= self._spent.slot
        self._spent = self._input = None
        self._deps.quota.wake(self._lease)

    def progress(self) -> None:
        """Charge the output tokens that were accepted since the last time."""
        followed = self._followed
        if followed is None:
            return
        if self._deps.clock.monotonic_s() > self._over_s:
            self._settle(followed)  # its end was never read here
        else:
            self._charge(followed)

    def _charge(self, followed: Followed) -> None:
        accepted = followed.fold.accepted_count
        self._lease.charge(Kind.OUTPUT, accepted - self._output)
        self._output = accepted

    def _settle(self, followed: Followed) -> None:
        if self._spent is None:
            return
        self._charge(followed)
        assert self._input is not None, "nothing starts before its input is paid for"
        free = (followed.fold.cached_tokens or 0) if self._output else self._input
        self._lease.give(Kind.INPUT, min(free, self._input))
        self._lease.in_flight -= 1
        self._spent = None
        self._deps.quota.ended(self, self._lease)

    async def _wait_for(self, ask: Ask) -> None:
        lack = await self._deps.quota.take(self._lease, ask)
        if lack is not None:
            raise self._refusal(lack)

    def _require_month(self) -> None:
        try:
            require_month(self._limits, self._deps.totals, self._deps.clock.now_ms())
        except QuotaExhausted:
            self._note(LimitName.MONTH)
            raise

    def _refusal(self, lack: Lack) -> LimitReached:
        self._note(lack.limit)
        rule = f"{_WORDS[lack.limit].format(lack.value)} ({lack.limit.value})"
        org = f"the organization {self._limits.org}'s limit of {rule}"
        kind = "tokens" if lack.limit in (LimitName.INPUT, LimitName.OUTPUT) else "requests"
        if lack.retry_s is None:
            return LimitReached(
                f"This request alone is more than {org}: it would never pass.", kind, None
            )
        retry_s = min(_RETRY_S_MAX, max(1, math.ceil(lack.retry_s)))
        return LimitReached(
            f"This request would exceed {org}. Try again in {retry_s} s.", kind, retry_s
        )

    def _note(self, limit: LimitName) -> None:
        self._call.reason = limit.value
        self._deps.metrics.count("requests_limited", limit=limit.value)


def require_month(org_limits: OrgLimits | None, totals: TotalsView, now_ms: int) -> None:
    """Let an org pass that has tokens left of this month. Raises QuotaExhausted."""
    allowed = None if org_limits is None else org_limits.tokens_per_month
    if org_limits is None or allowed is None:
        return
    used = totals.month_tokens(org_limits.org, month_of(now_ms))
    if used >= allowed:
        raise QuotaExhausted(
            f"The organization {org_limits.org} has used its {allowed} tokens of this month "
            f"(tokens_per_month; {used} used). It is whole again with the next month, UTC."
        )


def _left(lease: OrgLease, counts: bool, now_s: float) -> list[Left]:
    """Return the limits that a call's answer tells of; none before anything is known of them."""
    if not lease.knows:
        return []
    shown = (
        ("requests", Kind.COUNTS if counts else Kind.REQUESTS),
        ("input-tokens", Kind.INPUT),
        ("output-tokens", Kind.OUTPUT),
    )
    found = []
    for name, kind in shown:
        limit = lease.limits.per_minute[kind]
        if limit is not None:
            remaining, full_in_s = lease.remaining(kind, now_s)
            found.append(Left(name=name, limit=limit, remaining=remaining, full_in_s=full_in_s))
    return found
