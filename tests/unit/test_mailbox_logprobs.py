"""Log probabilities on their way from the log to a client, in time or late."""

from msgspec.structs import replace

from gateway.mailbox import Chunk, accept, so_far
from schemas.fold import ReplyFold, ended_fold
from schemas.replies import ChoiceTokens, TokenLogprob
from tests.builders import delta, start

NUMBERS = (TokenLogprob(logprob=-0.5), TokenLogprob(logprob=-1.5))


def test_late_readers_get_the_numbers_of_all_tokens() -> None:
    """Who comes late is given the log probabilities that those in time were given."""
    fold = ReplyFold()
    accept(fold, start("a"), 0)
    for index, number in enumerate(NUMBERS):
        (chunk,) = accept(fold, replace(delta(index, 7), logprobs=(number,)), 0)
        assert isinstance(chunk, Chunk) and chunk.logprobs == (number,)
    late = so_far(fold)
    assert late is not None
    assert [chunk.logprobs for chunk in late if isinstance(chunk, Chunk)] == [NUMBERS]


def test_replays_get_them_from_the_terminal() -> None:
    """A finished reply is shown from its terminal alone, numbers included."""
    terminal = delta(2, ends_with=(7, 7)).terminal
    assert terminal is not None
    tokens = ChoiceTokens(segment=0, choice=0, token_ids=(7, 7), logprobs=NUMBERS)
    late = so_far(ended_fold(replace(terminal, tokens=(tokens,)), 0, None))
    assert late is not None
    assert [chunk.logprobs for chunk in late if isinstance(chunk, Chunk)] == [NUMBERS]
