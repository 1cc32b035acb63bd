"""The fold for any log: laws that hold whatever was sent, lost, doubled or late."""

from copy import deepcopy

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.fold import ReplyFold
from schemas.replies import Closed, CloseReason, Delta, Start
from schemas.usage import usage_of
from tests.builders import REQUEST_ID, closed, delta, start
from tests.sim.judge import Judged

Fact = Start | Delta | Closed

ATTEMPTS = ("a", "b", "c")
TOKENS = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def deltas(draw: st.DrawFn) -> Delta:
    """Return a delta of some attempt, perhaps a terminal with right or wrong ids."""
    first = draw(st.integers(0, 4))
    token_ids = draw(TOKENS)
    ends_with = None
    if draw(st.booleans()):
        ends_with = (*draw(st.lists(st.integers(0, 3), max_size=first)), *token_ids)
    return delta(first, *token_ids, attempt=draw(st.sampled_from(ATTEMPTS)), ends_with=ends_with)


FACTS = st.one_of(
    st.sampled_from(ATTEMPTS).map(start),
    deltas(),
    deltas(),
    deltas(),
    st.sampled_from(list(CloseReason)).map(closed),
)
LOGS = st.lists(FACTS, max_size=30)

NO_DEADLINE = settings(deadline=None)
"""A busy machine is no bug of the fold."""


def folded(log: list[Fact]) -> ReplyFold:
    """Return the fold of a whole log; the n-th fact was appended in millisecond n."""
    fold = ReplyFold()
    for at_ms, fact in enumerate(log):
        fold.apply(fact, at_ms)
    return fold


def tokens(fold: ReplyFold) -> list[int]:
    """Return the accepted ids of the one choice."""
    return fold.accepted.get((0, 0), [])


@NO_DEADLINE
@given(LOGS, st.integers(0, 30))
def test_a_reader_from_a_saved_state_holds_the_same_fold(log: list[Fact], cut: int) -> None:
    """Going on from a copy taken anywhere gives what a reader from the floor has (I1)."""
    saved = deepcopy(folded(log[:cut]))
    for at_ms, fact in enumerate(log[cut:], len(log[:cut])):
        saved.apply(fact, at_ms)
    assert saved == folded(log)


@NO_DEADLINE
@given(LOGS, st.integers(0, 30))
def test_earlier_views_are_prefixes_of_later_ones(log: list[Fact], cut: int) -> None:
    """What was accepted once stays, and only grows at its end (I1, I2)."""
    before, after = tokens(folded(log[:cut])), tokens(folded(log))
    assert after[: len(before)] == before


@NO_DEADLINE
@given(LOGS, LOGS)
def test_nothing_counts_after_the_end(log: list[Fact], more: list[Fact]) -> None:
    """An ended fold refuses every fact and never changes again (I4)."""
    fold = folded(log)
    if fold.end is None:
        fold.apply(closed(), len(log))
    before = deepcopy(fold)
    assert not any(fold.apply(fact, 1_000) for fact in more)
    assert fold == before


@NO_DEADLINE
@given(LOGS)
def test_a_terminal_that_ends_a_reply_carries_all_its_ids(log: list[Fact]) -> None:
    """The ids of a counted terminal are the accepted ones (I4)."""
    fold = folded(log)
    if fold.end is not None and fold.end.terminal is not None:
        (claimed,) = fold.end.terminal.tokens
        assert list(claimed.token_ids) == tokens(fold)


@NO_DEADLINE
@given(LOGS)
def test_a_delta_counts_only_for_the_current_attempt_at_the_next_index(log: list[Fact]) -> None:
    """A counted delta is of the newest start and begins where the accepted ids end (I2, I3)."""
    fold, current = ReplyFold(), None
    for at_ms, fact in enumerate(log):
        held, ended = len(tokens(fold)), fold.end is not None
        counted = fold.apply(fact, at_ms)
        if isinstance(fact, Start) and not ended:
            current = fact.attempt
        if isinstance(fact, Delta) and counted:
            assert (fact.attempt, fact.first_index) == (current, held)
            assert tokens(fold)[held:] == list(fact.token_ids)


@NO_DEADLINE
@given(LOGS)
def test_the_simulators_judge_folds_alike(log: list[Fact]) -> None:
    """Two folds, written apart from the same rule, agree on every log and on its usage (I6)."""
    fold, judged = ReplyFold(), Judged(REQUEST_ID, 0, 0)
    for at_ms, fact in enumerate(log):
        fold.apply(fact, at_ms)
        judged.apply(fact, at_ms)
        assert judged.tokens == tokens(fold)
        assert (judged.attempt, judged.starts) == (fold.attempt, fold.starts)
        assert judged.ended == (fold.end is not None)
    if fold.end is not None and fold.origin is not None:
        assert judged.usage() == usage_of(REQUEST_ID, fold)
