"""Which token a scripted run makes next where its request constrains the draw.

Owns the rules of grammars, biases, bad words and stop tokens for a script, each a function of the
prefix, so that a continued run draws as an undisturbed one. Where nothing is refused the token is
the plain script's. Owns log probabilities too: numbers that follow from the prefix. Called by
`scripted_engine`.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from engine_workers.engine.port import EngineRejected, EngineRequest
from engine_workers.engine.script import Script, expected_token, prefix_hash
from schemas.grammar import BadGrammar
from schemas.replies import TokenLogprob, TopLogprob
from schemas.requests import Sampling

if TYPE_CHECKING:  # most scripts never need it: it is loaded by whoever gives it
    from infra.guidance import Guidance, Matcher

__all__ = ["ConstrainedDraw", "LoadGuidance", "constrained_draw", "token_logprob"]

LoadGuidance = Callable[[], "Guidance"]

_TRIES = 64
_END_ONE_IN = 8
"""Chance that a run ends where its grammar allows it and allows more: replies stay short."""
_CLOSERS = ('"', "}", "]")
"""What ends texts, objects and arrays: drawn every second time where the grammar allows it."""
_DRAW_BITS = 32


def constrained_draw(
    script: Script,
    request: EngineRequest,
    emitted: Sequence[int],
    guidance: LoadGuidance | None,
) -> "ConstrainedDraw | None":
    """Return how a run draws; None where the plain script serves it.

    Raises: EngineRejected where a grammar or bad words are asked of a script without a tokenizer,
    or the grammar does not compile or refuses `emitted`.
    """
    sampling, grammar = request.sampling, request.grammar
    if grammar is None and not sampling.bad_words:
        constrained = sampling.logit_bias or sampling.stop_token_ids
        return ConstrainedDraw(script, sampling, emitted=emitted) if constrained else None
    if guidance is None:
        raise EngineRejected("grammar, bad_words: a script without a tokenizer has none")
    language = guidance()
    try:
        matcher = None if grammar is None else language.matcher(grammar)
    except BadGrammar as error:
        raise EngineRejected(str(error)) from error
    if matcher is not None and not matcher.take(emitted):
        raise EngineRejected("grammar: refuses `emitted`")
    return ConstrainedDraw(
        script,
        sampling,
        emitted=emitted,
        words=_banned(sampling.bad_words, language),
        matcher=matcher,
        closers=_closers(language) if matcher is not None else (),
    )


class ConstrainedDraw:
    """The next token of one run; holds what was made so far."""

    def __init__(
        self,
        script: Script,
        sampling: Sampling,
        *,
        emitted: Sequence[int],
        words: Sequence[tuple[int, ...]] = (),
        matcher: "Matcher | None" = None,
        closers: Sequence[int] = (),
    ) -> None:
        self._script = script
        self._sampling = sampling
        self._made = list(emitted)
        self._words = words
        self._matcher = matcher
        self._biases = {each.token_id: each.bias for each in sampling.logit_bias}
        self._closers = closers

    def next_token(self, salt: int, prefix: int, *, may_end: bool) -> int:
        """Return the token after the prefix, and take it as made.

        Raises: BadGrammar where the grammar has grown too complex to follow.
        """
        if self._matcher is None:
            token_id = self._drawn(salt, prefix, may_end)
        else:
            token_id = self._guided(self._matcher, prefix ^ salt)
        self._made.append(token_id)
        return token_id

    def _drawn(self, salt: int, prefix: int, may_end: bool) -> int:
        for token_id, bias in self._biases.items():
            if bias > 0 and _chance(prefix ^ salt, token_id) < 1 - math.exp(-bias):
                return token_id
        for number in range(_TRIES):
            place = prefix_hash((number,), prefix) if number else prefix
            token_id = expected_token(self._script, salt, place, may_end=may_end)
            if not self._refuses(token_id, prefix ^ salt):
                return token_id
        return token_id

    def _guided(self, matcher: "Matcher", state: int) -> int:
        allowed = matcher.allowed()
        eos_bit = 1 << self._script.eos_id
        if allowed & eos_bit:
            if allowed == eos_bit or _draw(state, 0) % _END_ONE_IN == 0:
                return self._script.eos_id
            allowed ^= eos_bit
        allowed = self._without_refused(allowed, state)
        token_id = self._closer(allowed, state)
        if token_id is None:
            token_id = _set_bit(allowed, _draw(state, 1) % self._script.vocab_size)
        matcher.take((token_id,))
        return token_id

    def _closer(self, allowed: int, state: int) -> int | None:
        for token_id in self._closers:
            if allowed >> token_id & 1 and _draw(state, token_id) % 2:
                return token_id
        return None

    def _without_refused(self, allowed: int, state: int) -> int:
        """Take away what biases, words and stop tokens refuse, unless nothing else is allowed."""
        rest = allowed
        last_of_words = {word[-1] for word in self._words}
        for token_id in {*self._biases, *last_of_words, *self._sampling.stop_token_ids}:
            if rest >> token_id & 1 and self._refuses(token_id, state):
                rest ^= 1 << token_id
        return rest or allowed

    def _refuses(self, token_id: int, state: int) -> bool:
        bias = self._biases.get(token_id, 0.0)
        if bias < 0 and _chance(state, token_id) < 1 - math.exp(bias):
            return True
        if token_id in self._sampling.stop_token_ids:
            return len(self._made) < self._sampling.min_tokens
        return any(self._completes(word, token_id) for word in self._words)

    def _completes(self, word: tuple[int, ...], token_id: int) -> bool:
        *before, last = word
        return token_id == last and self._made[len(self._made) - len(before) :] == before


def token_logprob(script: Script, salt: int, prefix: int, token_id: int, top: int) -> TokenLogprob:
    """Return log probabilities for a drawn token; it is the likeliest, others follow."""
    state = prefix ^ salt
    first = -(0.01 + _chance(state, 0))
    others = (_draw(state, number) % script.vocab_size for number in range(1, 2 * top + 2))
    token_ids = list(dict.fromkeys((token_id, *others)))[:top]
    return TokenLogprob(
        logprob=first,
        top=tuple(
            TopLogprob(token_id=each, logprob=first - rank / 2)
            for rank, each in enumerate(token_ids)
        ),
    )


def _banned(words: Sequence[str], language: "Guidance") -> list[tuple[int, ...]]:
    """Return the words' tokens, at the beginning of a text and after a space, as vLLM does."""
    forms = [tuple(language.encode(space + word.lstrip())) for word in words for space in ("", " ")]
    return [form for form in forms if form]


def _closers(language: "Guidance") -> list[int]:
    forms = [language.encode(text) for text in _CLOSERS]
    return [token_ids[0] for token_ids in forms if len(token_ids) == 1]


def _draw(state: int, number: int) -> int:
    return prefix_hash((number, number), state) >> _DRAW_BITS


def _chance(state: int, number: int) -> float:
    return _draw(state, number) / (1 << _DRAW_BITS)


def _set_bit(bits: int, first: int) -> int:
    """Return the lowest set bit at or above `first`, or else the lowest of all."""
    above = bits >> first
    if above:
        return first + (above & -above).bit_length() - 1
    return (bits & -bits).bit_length() - 1
