"""Usage is a pure function of the fold at its end."""

import pytest
from msgspec.structs import replace

from schemas.fold import ReplyFold
from schemas.replies import CloseReason, StopReason
from schemas.usage import usage_of
from tests.builders import REQUEST_ID, closed, delta, start


def test_a_finished_reply_is_billed_its_prompt_and_tokens() -> None:
    """Input is the whole prompt, output the accepted tokens; times are append times."""
    fold = ReplyFold()
    fold.apply(start(), 100)
    fold.apply(delta(0, 5), 110)
    fold.apply(delta(1, 6, ends_with=(5, 6), reason=StopReason.LENGTH), 120)
    usage = usage_of(REQUEST_ID, fold)
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (3, 2, 0)
    assert (usage.accepted_at_ms, usage.first_token_at_ms, usage.ended_at_ms) == (100, 110, 120)
    assert (usage.stop_reason, usage.close_reason) == ("length", None)


def test_a_close_without_tokens_bills_nothing() -> None:
    """A reply that generated nothing still has a usage row, with zero tokens."""
    fold = ReplyFold()
    fold.apply(closed(CloseReason.LATE), 100)
    usage = usage_of(REQUEST_ID, fold)
    assert (usage.input_tokens, usage.output_tokens, usage.close_reason) == (0, 0, "late")


def test_a_close_after_tokens_bills_them_and_the_prompt() -> None:
    """What was accepted before a close is billed once."""
    fold = ReplyFold()
    fold.apply(start(), 100)
    fold.apply(delta(0, 5), 101)
    fold.apply(closed(), 102)
    usage = usage_of(REQUEST_ID, fold)
    assert (usage.input_tokens, usage.output_tokens, usage.accepted_at_ms) == (3, 1, 100)


def test_a_prompt_that_was_only_cached_bills_no_token_of_output() -> None:
    """The one token that an engine makes at least was not asked for; the prompt was."""
    fold, begun = ReplyFold(), start()
    fold.apply(replace(begun, header=replace(begun.header, max_tokens=0)), 100)
    fold.apply(delta(0, 5, ends_with=(5,), reason=StopReason.LENGTH), 110)
    usage = usage_of(REQUEST_ID, fold)
    assert (usage.input_tokens, usage.output_tokens, usage.stop_reason) == (3, 0, "length")


def test_an_unfinished_reply_has_no_usage() -> None:
    """Asking too early is our own mistake."""
    fold = ReplyFold()
    fold.apply(start(), 100)
    with pytest.raises(AssertionError):
        usage_of(REQUEST_ID, fold)
