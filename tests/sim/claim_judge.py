"""The judge of idempotency keys: who holds each by the log, apart from the product's books.

Owns the truth about claims. Written anew from design rule 6.8 rather than shared with
`gateway.idempotency`, so that a bug there shows as a difference.
"""

from bisect import bisect_left
from dataclasses import dataclass, field

from infra.ports import LogRecord
from schemas.idempotency import IdempotencyRecord, KeyClaimed, KeyDone, KeyReleased
from schemas.requests import RequestAccepted
from tests.sim.judge import Judged


@dataclass(slots=True)
class JudgedClaim:
    """One nonce, from its first landing on."""

    claim: KeyClaimed
    won: bool
    state: str = "claimed"
    """Then released or done, for ever."""


@dataclass(slots=True)
class ClaimJudge:
    """All claims that ever landed."""

    claims: dict[str, JudgedClaim] = field(default_factory=dict)
    """By nonce."""
    by_request: dict[str, JudgedClaim] = field(default_factory=dict)
    holders: dict[str, list[tuple[int, str | None]]] = field(default_factory=dict)
    """By scope, who holds it from which next-offset of its partition on."""
    generating: dict[str, str] = field(default_factory=dict)
    """By scope, the one id that has tokens."""

    def take(
        self, record: LogRecord, fact: IdempotencyRecord, replies: dict[str, Judged]
    ) -> tuple[str, str, str] | None:
        """Take one record; return invariant, id and what is wrong with it, if anything is."""
        if fact.claimed is not None:
            self._claim(record, fact.claimed)
            return None
        told = fact.released or fact.done
        if told is None:
            return None
        judged = self.claims.get(told.nonce)
        if judged is None:
            return "I10", told.nonce, "is told of before it was claimed"
        name = judged.claim.request_id
        wrong = _wrong_end(told, replies.get(name))
        if wrong is not None:
            return "I10", name, wrong
        wanted = "released" if fact.released is not None else "done"
        if judged.state not in ("claimed", wanted):
            return "I10", name, f"was {judged.state} and is {wanted}"
        if judged.state == "claimed" and wanted == "released" and judged.won:
            self.holders[told.scope].append((record.offset + 1, None))
        judged.state = wanted
        return None

    def held(self, scope: str, next_offset: int) -> str | None:
        """Return the nonce that holds a scope for a reader that is to read `next_offset` next."""
        moments = self.holders.get(scope, [])
        index = bisect_left(moments, next_offset + 1, key=lambda moment: moment[0])
        return moments[index - 1][1] if index else None

    def wrong_event(self, request: RequestAccepted) -> tuple[str, str] | None:
        """Compare a keyed request's event with its claim."""
        judged = self.by_request.get(request.request_id)
        if judged is None:
            return "I9", "its event landed, and no claim of it"
        if not judged.won:
            return "I9", "its event landed, and its claim had lost"
        claim = judged.claim
        fixed = (claim.locator, claim.lane, claim.seed, claim.admit_by_ms, claim.deadline_ms)
        if fixed != (
            request.locator,
            request.lane,
            request.seed,
            request.admit_by_ms,
            request.deadline_ms,
        ):
            return "I11", f"its event differs from its claim {claim}"
        return None

    def wrong_tokens(self, request_id: str) -> str | None:
        """Note that an id has tokens; it must be the only one of its key (I9)."""
        judged = self.by_request.get(request_id)
        if judged is None:
            return None
        first = self.generating.setdefault(judged.claim.scope, request_id)
        return None if first == request_id else f"has tokens, and so has {first} of the same key"

    def _claim(self, record: LogRecord, claim: KeyClaimed) -> None:
        if claim.nonce in self.claims:
            return
        moments = self.holders.setdefault(claim.scope, [])
        won = not moments or moments[-1][1] is None
        judged = JudgedClaim(claim, won)
        self.claims[claim.nonce] = self.by_request[claim.request_id] = judged
        if won:
            moments.append((record.offset + 1, claim.nonce))


def _wrong_end(told: KeyReleased | KeyDone, reply: Judged | None) -> str | None:
    if reply is None or not reply.ended:
        return "its key was let go before its end"
    void = reply.terminal is None and not reply.tokens
    if isinstance(told, KeyReleased):
        return None if void else f"its key was released after {len(reply.tokens)} tokens"
    if void:
        return "its key is done without a token"
    if told.end_offset != reply.end_offset:
        return f"its end was noted at {told.end_offset}, it stands at {reply.end_offset}"
    return None
