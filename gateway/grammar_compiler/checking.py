"""Compiles grammars over the model's tokenizer and says what is wrong with them.

Owns the one use of llguidance in the gateway, in the same form in which the engine uses it. Called
by this package's `__main__` only: a grammar can take any time and memory, or the process with it.
"""

import json
import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Self

import llguidance

__all__ = ["Checker"]

_ERROR_CHARS_MAX = 300
_SHOWN_LINE = re.compile(r"\s*[0-9]+ \|")
_CLOSERS = ('"', "}", "]", ",", '",', '"}', "{", '":', "0", " ", "<")
_WALKS, _WALK_TOKENS = 4, 96
"""About 30 ms at the most."""


class Checker:
    """Checks grammars for one tokenizer."""

    def __init__(self, tokenizer: llguidance.LLTokenizer) -> None:
        self._tokenizer = tokenizer
        singles = (tokenizer.tokenize_str(text) for text in _CLOSERS)
        self._closers = [tokens[0] for tokens in singles if len(tokens) == 1]

    @classmethod
    def load(cls, tokenizer_file: str, eos_ids: Sequence[int]) -> Self:
        """Read `tokenizer.json`. Raises ValueError where it cannot be used."""
        return cls(llguidance.LLTokenizer(tokenizer_file, eos_token=list(eos_ids) or None))

    def check(self, grammar: str) -> str | None:
        """Return what is wrong with a grammar, or None.

        Args:
            grammar: as `RequestAccepted.grammar`.
        """
        try:
            matcher = llguidance.LLMatcher(self._tokenizer, _engine_grammar(grammar), log_level=0)
        except ValueError as error:
            return _told(str(error))
        if matcher.is_error():
            return _told(matcher.get_error())
        return _rehearse(matcher, self._closers)


def _engine_grammar(grammar: str) -> str:
    """Return llguidance's own form. Raises ValueError."""
    ((kind, value),) = json.loads(grammar).items()
    if kind == "json_schema":
        return llguidance.LLMatcher.grammar_from_json_schema(value)
    if kind == "json_object":
        return llguidance.LLMatcher.grammar_from_json_schema({"type": "object"})
    if kind == "choice":
        return llguidance.grammar_from("choice", json.dumps(value))
    return llguidance.grammar_from("regex" if kind == "regex" else "grammar", value)


def _rehearse(matcher: llguidance.LLMatcher, closers: Sequence[int]) -> str | None:
    """Follow a grammar for some tokens; return what is wrong, or None.

    Some errors show only on the way: recursion without end, too many alternatives at once, a value
    that nothing can be. There the engine would end the reply as if it were whole.
    """
    for walk in range(_WALKS):
        walker, draw = matcher.deep_copy(), walk
        for _ in range(_WALK_TOKENS):
            allowed = walker.compute_bitmask()
            if walker.is_error():
                return _told(walker.get_error())
            if walker.is_stopped():
                break
            draw = (draw * 1_103_515_245 + 12_345) & 0x7FFFFFFF
            token = _pick(allowed, draw, closers)
            if token is None:
                return None if walker.is_accepting() else "no value can follow it"
            if not walker.consume_token(token):
                return _told(walker.get_error())
    return None


def _pick(allowed: bytes, draw: int, closers: Sequence[int]) -> int | None:
    """Return an allowed token: mostly one that closes something, else any from a drawn place on."""
    if draw & 7:
        closing = [token for token in closers if allowed[token >> 3] >> (token & 7) & 1]
        if closing:
            return closing[(draw >> 8) % len(closing)]
    start = (draw >> 8) % len(allowed)
    for begin, end in ((start, len(allowed)), (0, start)):
        rest = allowed[begin:end].lstrip(b"\0")
        if rest:
            bits = rest[0]
            return (end - len(rest)) * 8 + (bits & -bits).bit_length() - 1
    return None


def _told(error: str) -> str:
    """Return the words of an error, without the grammar and the state that it shows."""
    lines = takewhile(lambda line: not _SHOWN_LINE.match(line), error.splitlines())
    text = " ".join(" ".join(lines).split("<state>")[0].split())
    return text if len(text) <= _ERROR_CHARS_MAX else text[:_ERROR_CHARS_MAX] + "..."
