"""The fold of replies with several choices, and with log probabilities."""

from msgspec.structs import replace

from schemas.fold import ReplyFold, ended_fold
from schemas.replies import (
    ChoiceTokens,
    Closed,
    Delta,
    Start,
    Stop,
    StopReason,
    Terminal,
    TokenLogprob,
    TopLogprob,
)
from tests.builders import REQUEST_ID, STAGES, start

END = Stop(reason=StopReason.END)
LENGTH = Stop(reason=StopReason.LENGTH)
LIKELY = TokenLogprob(logprob=-0.5, top=(TopLogprob(token_id=7, logprob=-0.5),))


def part(
    choice: int,
    first_index: int,
    *token_ids: int,
    attempt: str = "a",
    stop: Stop | None = None,
    terminal: Terminal | None = None,
    logprobs: tuple[TokenLogprob, ...] | None = None,
) -> Delta:
    """Return a delta of a choice."""
    return Delta(
        request_id=REQUEST_ID,
        attempt=attempt,
        segment=0,
        choice=choice,
        first_index=first_index,
        token_ids=token_ids,
        stop=stop,
        terminal=terminal,
        logprobs=logprobs,
    )


def whole(stops: tuple[Stop, ...], *choices: tuple[int, ...]) -> Terminal:
    """Return a terminal that carries these stops and these tokens by choice."""
    return Terminal(
        stops=stops,
        stages=STAGES,
        tokens=tuple(
            ChoiceTokens(segment=0, choice=choice, token_ids=token_ids)
            for choice, token_ids in enumerate(choices)
        ),
    )


def folded(*facts: Start | Delta | Closed) -> tuple[ReplyFold, list[bool]]:
    """Return the fold of these facts and which of them counted."""
    fold = ReplyFold()
    return fold, [fold.apply(fact, 100) for fact in facts]


TWO = start(choices=2)
BEGINNING = (TWO, part(0, 0, 5), part(1, 0, 6, 7), part(0, 1, 8, stop=END))


def test_choices_are_counted_side_by_side() -> None:
    """Each choice has its own indexes, stop and tokens; the reply's count is their sum."""
    fold, verdicts = folded(*BEGINNING)
    assert all(verdicts)
    assert fold.accepted == {(0, 0): [5, 8], (0, 1): [6, 7]}
    assert (fold.accepted_count, fold.stops, fold.end) == (4, {0: END}, None)


def test_the_last_open_choice_ends_the_reply() -> None:
    """Its last delta is the terminal, with the stops and tokens of all choices."""
    terminal = whole((END, LENGTH), (5, 8), (6, 7, 9))
    fold, verdicts = folded(*BEGINNING, part(1, 2, 9, stop=LENGTH, terminal=terminal))
    assert verdicts[-1]
    assert fold.end is not None and fold.end.terminal == terminal
    assert fold.stops == {0: END, 1: LENGTH}


def test_tokens_of_a_choice_after_its_stop_do_not_count() -> None:
    """Whatever attempt they are of, and a second stop neither."""
    _, verdicts = folded(
        *BEGINNING,
        part(0, 2, 9),
        part(0, 2, stop=END),
        start("b", choices=2),
        part(0, 2, 9, attempt="b"),
        part(1, 2, 9, attempt="b"),
    )
    assert verdicts[4:] == [False, False, True, False, True]


def test_a_terminal_does_not_count_while_another_choice_is_open() -> None:
    """Neither with the stops there are, nor with a stop that no delta has said."""
    for stops in ((END,), (END, END)):
        terminal = whole(stops, (5,), (6, 7))
        _, verdicts = folded(*BEGINNING[:3], part(1, 2, stop=END, terminal=terminal))
        assert not verdicts[-1]


def test_a_terminal_with_other_stops_or_tokens_does_not_count() -> None:
    """It repeats what was accepted, of every choice."""
    for terminal in (
        whole((LENGTH, END), (5, 8), (6, 7)),
        whole((END, END), (5,), (6, 7)),
        whole((END, END), (5, 8), (6,)),
        whole((END, END), (5, 8)),
    ):
        _, verdicts = folded(*BEGINNING, part(1, 2, stop=END, terminal=terminal))
        assert not verdicts[-1]


def test_the_last_stop_without_a_terminal_does_not_count() -> None:
    """A reply never has all its stops and no end; a terminal without a stop is none."""
    terminal = whole((END, END), (5, 8), (6, 7))
    _, verdicts = folded(*BEGINNING, part(1, 2, stop=END), part(1, 2, terminal=terminal))
    assert verdicts[-2:] == [False, False]


def test_a_choice_that_was_not_asked_for_does_not_end() -> None:
    """The header says how many there are."""
    assert folded(*BEGINNING, part(2, 0, 9, stop=END))[1][-1] is False


def test_log_probabilities_are_kept_by_token() -> None:
    """Those of deltas that count, by choice; the terminal's ids alone are compared."""
    terminal = whole((END,), (5, 6))
    fold, verdicts = folded(
        start(),
        part(0, 0, 5, logprobs=(LIKELY,)),
        part(0, 0, 5, logprobs=(LIKELY,)),
        part(0, 1, 6, logprobs=(LIKELY,), stop=END, terminal=terminal),
    )
    assert verdicts == [True, True, False, True]
    assert fold.logprobs == {(0, 0): [LIKELY, LIKELY]}


def test_a_finished_reply_shows_stops_and_log_probabilities() -> None:
    """What a terminal alone says is what the whole fold says to clients."""
    bare = whole((END, LENGTH), (5,), (6, 7))
    first, second = bare.tokens
    terminal = replace(bare, tokens=(replace(first, logprobs=(LIKELY,)), second))
    fold = ended_fold(terminal, 100, 3)
    assert fold.stops == {0: END, 1: LENGTH}
    assert fold.logprobs == {(0, 0): [LIKELY]}
    assert (fold.accepted_count, fold.cached_tokens) == (3, 3)
