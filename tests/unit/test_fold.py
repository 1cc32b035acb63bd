"""The fold: each clause of design rule 6.1."""

from schemas.fold import ReplyFold
from schemas.replies import CloseReason
from tests.builders import closed, delta, start


def folded(*facts: object) -> tuple[ReplyFold, list[bool]]:
    """Return the fold of these facts and which of them counted."""
    fold = ReplyFold()
    verdicts = [fold.apply(fact, 100 + index) for index, fact in enumerate(facts)]  # type: ignore[arg-type]  # facts of any kind
    return fold, verdicts


def test_tokens_of_the_current_attempt_count_in_order() -> None:
    """Deltas whose first index is the next one are accepted once each."""
    fold, verdicts = folded(start(), delta(0, 5, 6), delta(2, 7))
    assert verdicts == [True, True, True]
    assert fold.accepted == {(0, 0): [5, 6, 7]}
    assert fold.first_token_at_ms == 101


def test_a_delta_before_any_start_does_not_count() -> None:
    """Without a start no attempt is current."""
    assert folded(delta(0, 5))[1] == [False]


def test_a_start_supersedes_the_attempt_before_it_at_once() -> None:
    """After a second start the first attempt's tokens no longer count, even before it has any."""
    fold, verdicts = folded(start("a"), delta(0, 5), start("b"), delta(1, 6, attempt="a"))
    assert verdicts == [True, True, True, False]
    assert fold.accepted == {(0, 0): [5]}


def test_a_repeated_or_skipping_delta_does_not_count() -> None:
    """The index check refuses doubles and gaps."""
    assert folded(start(), delta(0, 5), delta(0, 5), delta(3, 9))[1] == [True, True, False, False]


def test_a_terminal_counts_only_with_exactly_the_accepted_ids() -> None:
    """A terminal that claims other ids does not end the reply; the right one does."""
    fold, verdicts = folded(
        start(), delta(0, 5), delta(1, 6, ends_with=(4, 6)), delta(1, 6, ends_with=(5, 6))
    )
    assert verdicts == [True, True, False, True]
    assert fold.end is not None and fold.end.terminal is not None


def test_a_terminal_with_empty_ids_of_its_own_counts() -> None:
    """The last delta may bring the end alone."""
    assert folded(start(), delta(0, 5), delta(1, ends_with=(5,)))[1] == [True, True, True]


def test_nothing_counts_after_the_end() -> None:
    """After a terminal or a close, starts, tokens and closes are ignored."""
    for end in (delta(1, ends_with=(5,)), closed()):
        _, verdicts = folded(start(), delta(0, 5), end, start("b"), delta(1, 9), closed())
        assert verdicts == [True, True, True, False, False, False]


def test_the_first_close_gives_the_reason() -> None:
    """A second close changes nothing."""
    fold, verdicts = folded(closed(CloseReason.LATE), closed(CloseReason.FAILED))
    assert verdicts == [True, False]
    assert fold.end is not None and fold.end.close_reason is CloseReason.LATE


def test_the_origin_is_the_first_start_or_else_the_close() -> None:
    """Identity and acceptance time come from the first record that carries a header."""
    assert folded(start("a"), start("b"))[0].origin.append_time_ms == 100  # type: ignore[union-attr]  # set by the start
    assert folded(delta(0, 5), closed())[0].origin.append_time_ms == 101  # type: ignore[union-attr]  # set by the close


def test_starts_without_a_token_are_remembered_until_one_is_accepted() -> None:
    """Who started in vain, and whether alone; one worker's repeats count once, a token ends it."""
    starts = [
        start("a", worker="w/1"),
        start("b", worker="w/1"),
        start("c", worker="w/2"),
        start("d", worker="w/3", alone=True),
    ]
    fold, _ = folded(*starts, delta(0, 5, attempt="a"))
    assert [(barren.worker, barren.alone) for barren in fold.barren] == [
        ("w/1", False),
        ("w/2", False),
        ("w/3", True),
    ]
    assert folded(*starts, delta(0, 5, attempt="d"))[0].barren == ()
