"""Planted bugs in who counts: mutations of `schemas.fold.ReplyFold`."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from schemas.fold import End, ReplyFold
from schemas.replies import Closed, Delta, Start

Fact = Start | Delta | Closed
Apply = Callable[[ReplyFold, Fact, int], bool]

_apply: Apply = ReplyFold.apply
_accept: Callable[[ReplyFold, Delta, int], bool] = ReplyFold._accept
_pending: dict[int, str] = {}


def superseded_attempt_counts(self: ReplyFold, delta: Delta, at_ms: int) -> bool:
    """A delta counts whichever attempt made it."""
    attempt, self.attempt = self.attempt, delta.attempt
    counted = _accept(self, delta, at_ms)
    self.attempt = attempt
    return counted


def no_index_check(self: ReplyFold, delta: Delta, at_ms: int) -> bool:
    """A delta counts wherever it says that it begins."""
    held = self.accepted.get((delta.segment, delta.choice), [])
    return _accept(self, replace(delta, first_index=len(held)), at_ms)


def uncounted_terminal_ends(self: ReplyFold, fact: Fact, at_ms: int) -> bool:
    """A terminal ends the reply although its tokens do not count."""
    counted = _apply(self, fact, at_ms)
    if isinstance(fact, Delta) and fact.terminal is not None and self.end is None:
        self.end = End(terminal=fact.terminal, close_reason=None, append_time_ms=at_ms)
        return True
    return counted


def start_reopens(self: ReplyFold, fact: Fact, at_ms: int) -> bool:
    """A start after the end opens the reply again."""
    if isinstance(fact, Start):
        self.end = None
    return _apply(self, fact, at_ms)


def tokens_after_the_end(self: ReplyFold, fact: Fact, at_ms: int) -> bool:
    """Tokens go on counting after a close."""
    end = self.end
    if end is not None and isinstance(fact, Delta):
        self.end = None
        counted = _apply(self, fact, at_ms)
        self.end = end
        return counted
    return _apply(self, fact, at_ms)


def second_close_overrides(self: ReplyFold, fact: Fact, at_ms: int) -> bool:
    """The last close is the one that counts."""
    if isinstance(fact, Closed):
        self.end = None
    return _apply(self, fact, at_ms)


def start_waits_for_its_first_token(self: ReplyFold, fact: Fact, at_ms: int) -> bool:
    """A start becomes current only when its first token comes."""
    if isinstance(fact, Start) and self.attempt is not None and self.end is None:
        before = self.attempt
        counted = _apply(self, fact, at_ms)
        _pending[id(self)], self.attempt = fact.attempt, before
        return counted
    if isinstance(fact, Delta) and _pending.get(id(self)) == fact.attempt:
        self.attempt = fact.attempt
    return _apply(self, fact, at_ms)


def origin_of_the_newest_start(self: ReplyFold, fact: Fact, at_ms: int) -> bool:
    """`accepted_at` is taken from the newest start instead of the first."""
    if isinstance(fact, Start) and self.end is None:
        self.origin = None
    return _apply(self, fact, at_ms)


def first_attempt_wins(self: ReplyFold, fact: Fact, at_ms: int) -> bool:
    """The first start is the only one that ever counts."""
    before = self.attempt
    counted = _apply(self, fact, at_ms)
    if before is not None and isinstance(fact, Start):
        self.attempt = before
    return counted


def any_end_is_right(self: ReplyFold, delta: Delta) -> bool:
    """A terminal counts although a choice is open."""
    return True


APPLY_MUTATIONS: dict[str, Any] = {
    "uncounted-terminal-ends": uncounted_terminal_ends,
    "start-reopens": start_reopens,
    "tokens-after-the-end": tokens_after_the_end,
    "second-close-overrides": second_close_overrides,
    "start-waits-for-its-first-token": start_waits_for_its_first_token,
    "first-attempt-wins": first_attempt_wins,
    "accepted-at-from-newest-start": origin_of_the_newest_start,
}
ACCEPT_MUTATIONS: dict[str, Any] = {
    "superseded-attempt-counts": superseded_attempt_counts,
    "no-index-check": no_index_check,
}
