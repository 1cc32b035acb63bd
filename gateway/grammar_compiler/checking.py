"""Compiles grammars over the model's tokenizer and says what is wrong with them.

Owns the words of the verdict, and a rehearsal: some faults of a grammar show only on the way.
Called by this package's `__main__` only: a grammar can take any time and memory, or the process
with it.
"""

import re
from itertools import takewhile

from infra.guidance import Guidance, Matcher
from schemas.grammar import BadGrammar

__all__ = ["Checker"]

_ERROR_CHARS_MAX = 300
_SHOWN_LINE = re.compile(r"\s*[0-9]+ \|")
_CLOSERS = ('"', "}", "]", ",", '",', '"}', "{", '":', "0", " ", "<")
_WALKS, _WALK_TOKENS = 4, 96
"""About 30 ms at the most."""


class Checker:
    """Checks grammars for one tokenizer."""

    def __init__(self, guidance: Guidance) -> None:
        self._guidance = guidance
        singles = map(guidance.encode, _CLOSERS)
        self._closers = [tokens[0] for tokens in singles if len(tokens) == 1]

    def check(self, grammar: str) -> str | None:
        """Return what is wrong with a grammar, or None.

        Args:
            grammar: as `RequestAccepted.grammar`.
        """
        try:
            matcher = self._guidance.matcher(grammar)
            for walk in range(_WALKS):
                self._rehearse(matcher.copy(), walk)
        except BadGrammar as error:
            return _told(str(error))
        return None

    def _rehearse(self, matcher: Matcher, draw: int) -> None:
        """Follow a grammar for some tokens.

        Raises: BadGrammar for what an engine would meet on the way: recursion without end, too many
            alternatives at once, a value that nothing can be.
        """
        for _ in range(_WALK_TOKENS):
            allowed = matcher.allowed()
            if matcher.stopped:
                if not matcher.complete:
                    raise BadGrammar("no value can follow it")
                return
            draw = (draw * 1_103_515_245 + 12_345) & 0x7FFFFFFF
            token = self._pick(allowed, draw)
            if not matcher.take([token]):
                if matcher.complete:
                    return  # it was a token that ends the reply
                matcher.allowed()  # raises, saying why
                raise BadGrammar("it refuses what it allows")

    def _pick(self, allowed: int, draw: int) -> int:
        """Return an allowed token: mostly one that closes something, else any."""
        if draw & 7:
            closing = [token for token in self._closers if allowed >> token & 1]
            if closing:
                return closing[(draw >> 8) % len(closing)]
        start = (draw >> 8) % allowed.bit_length()
        rest = allowed >> start
        base, rest = (start, rest) if rest else (0, allowed)
        return base + (rest & -rest).bit_length() - 1


def _told(error: str) -> str:
    """Return the words of an error, without the grammar and the state that it shows."""
    lines = takewhile(lambda line: not _SHOWN_LINE.match(line), error.splitlines())
    text = " ".join(" ".join(lines).split("<state>")[0].split()).removeprefix("grammar: ")
    return text if len(text) <= _ERROR_CHARS_MAX else text[:_ERROR_CHARS_MAX] + "..."
