"""Checks of what processes believe against what the log says: folds, jobs, tokens, stops.

Pure comparisons; `checks.py` says when. Each returns what is wrong, or None.
"""

from dataclasses import dataclass

from engine_workers.engine.continuation import MatchStop, stop_after
from engine_workers.engine.script import (
    Script,
    expected_token,
    prefix_hash,
    run_salt,
)
from engine_workers.engine.stop_strings import StopStrings
from engine_workers.tail import TailedReply
from schemas.fold import ReplyFold
from schemas.requests import RequestAccepted
from tests.assembler_cases import ByteDecoder
from tests.sim.judge import NOTHING, Judged
from tests.sim.platform import EOS_ID


def wrong_fold(fold: ReplyFold, reply: Judged | None, next_offset: int) -> str | None:
    """Compare a fold that is complete up to `next_offset` with the log (I1)."""
    truth = reply.at(next_offset) if reply is not None else NOTHING
    ended = fold.end is not None
    if ended != truth.ended:
        return f"ended is {ended}, by the log {truth.ended}"
    if (fold.attempt, fold.starts) != (truth.attempt, truth.starts):
        return (
            f"attempt {fold.attempt} ({fold.starts}), by the log {truth.attempt} ({truth.starts})"
        )
    if reply is None:
        return f"tokens {fold.accepted}, by the log none" if fold.accepted_count else None
    for choice in range(reply.choice_count):
        held, accepted = fold.accepted.get((0, choice), []), reply.of_choice(choice, truth.accepted)
        if held != accepted:
            return f"tokens {held} of choice {choice}, by the log {accepted}"
    if fold.end is None and fold.accepted_count != truth.accepted:
        return f"{fold.accepted_count} tokens, by the log {truth.accepted}"
    return None


def wrong_tailed(tailed: TailedReply, reply: Judged | None, next_offset: int) -> str | None:
    """Compare a worker's complete view of a reply with the log (I1, I6)."""
    if tailed.usage is None:
        return wrong_fold(tailed.fold, reply, next_offset)
    if reply is None or not reply.at(next_offset).ended:
        return "ended, by the log not"
    if tailed.usage != reply.usage():
        return f"usage {tailed.usage}, by the log {reply.usage()}"
    return None


@dataclass(slots=True)
class CheckedChoice:
    """How far one choice has been recomputed."""

    prefix: int
    count: int = 0
    maker: str = ""
    salt: int = 0


class CheckedTokens:
    """How far the accepted tokens of one reply have been recomputed."""

    def __init__(self, request: RequestAccepted) -> None:
        self._request = request
        self._count = 0
        prefix = prefix_hash(request.prompt_token_ids)
        self._choices = [CheckedChoice(prefix) for _ in range(request.header.choices)]

    def wrong_token(self, script: Script, reply: Judged) -> str | None:
        """Recompute what has been accepted since, each on the accepted ones before it (I3)."""
        sampling, seed = self._request.sampling, self._request.seed
        for index in range(self._count, len(reply.tokens)):
            token, maker, choice = reply.tokens[index], reply.makers[index], reply.choices[index]
            checked = self._choices[choice]
            if maker != checked.maker:
                checked.maker, checked.salt = maker, run_salt(script, seed + choice, maker)
            may_end = not sampling.ignore_eos and checked.count >= sampling.min_tokens
            expected = expected_token(script, checked.salt, checked.prefix, may_end=may_end)
            if token != expected:
                place = f"token {checked.count} of choice {choice}"
                return f"{place} of attempt {maker} is {token}, on its prefix {expected}"
            checked.prefix = prefix_hash((token,), checked.prefix)
            checked.count += 1
        self._count = len(reply.tokens)
        return None


def wrong_stop(reply: Judged, request: RequestAccepted) -> str | None:
    """Compare where and why each choice stopped with an undisturbed run over its tokens (I3)."""
    sampling, terminal = request.sampling, reply.terminal and reply.terminal.terminal
    for choice in range(reply.choice_count):
        match: MatchStop = _matches_nothing
        if sampling.stop:
            match = StopStrings(sampling.stop, ByteDecoder(), sampling.min_tokens).match
        expected = None
        for index, token in enumerate(reply.of_choice(choice)):
            if expected is not None:
                return f"goes on after token {index - 1}, where it stops by {expected}"
            expected = stop_after(token, index + 1, sampling, (EOS_ID,), match)
        stop = reply.stops.get(choice)
        if stop != expected and (terminal is not None or stop is not None):
            return f"choice {choice} stopped by {stop}, undisturbed by {expected}"
    return None


def _matches_nothing(token_id: int) -> str | None:
    return None
