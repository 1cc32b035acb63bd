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
    held = fold.accepted.get((0, 0), [])
    if reply is not None and held != reply.tokens[: truth.accepted]:
        return f"tokens {held}, by the log {reply.tokens[: truth.accepted]}"
    if reply is None and held:
        return f"tokens {held}, by the log none"
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
class CheckedTokens:
    """How far the accepted tokens of one reply have been recomputed."""

    request: RequestAccepted
    prefix: int
    count: int = 0
    maker: str = ""
    salt: int = 0

    @classmethod
    def none_of(cls, request: RequestAccepted) -> "CheckedTokens":
        """Begin behind the prompt."""
        return cls(request, prefix_hash(request.prompt_token_ids))

    def wrong_token(self, script: Script, reply: Judged) -> str | None:
        """Recompute what has been accepted since, each on the accepted ones before it (I3)."""
        sampling, seed = self.request.sampling, self.request.seed
        for index in range(self.count, len(reply.tokens)):
            token, maker = reply.tokens[index], reply.makers[index]
            if maker != self.maker:
                self.maker, self.salt = maker, run_salt(script, seed, maker)
            may_end = not sampling.ignore_eos and index >= sampling.min_tokens
            expected = expected_token(script, self.salt, self.prefix, may_end=may_end)
            if token != expected:
                return f"token {index} of attempt {maker} is {token}, on its prefix {expected}"
            self.prefix = prefix_hash((token,), self.prefix)
        self.count = len(reply.tokens)
        return None


def wrong_stop(reply: Judged, request: RequestAccepted) -> str | None:
    """Compare where and why a reply stopped with an undisturbed run over its tokens (I3)."""
    sampling = request.sampling
    match: MatchStop = _matches_nothing
    if sampling.stop:
        match = StopStrings(sampling.stop, ByteDecoder(), sampling.min_tokens).match
    expected = None
    for index, token in enumerate(reply.tokens):
        if expected is not None:
            return f"goes on after token {index - 1}, where it stops by {expected}"
        expected = stop_after(token, index + 1, sampling, (EOS_ID,), match)
    terminal = reply.terminal.terminal if reply.terminal is not None else None
    if terminal is not None and terminal.stops != (expected,):
        return f"stopped by {terminal.stops}, undisturbed by {expected}"
    return None


def _matches_nothing(token_id: int) -> str | None:
    return None
