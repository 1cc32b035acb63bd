"""llguidance over one model's tokenizer: compiles grammars, and follows a reply under one.

Owns nothing but the library's use and its bounds, without vLLM and torch. Called by the engines and
by whoever checks grammars before work starts.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from schemas import limits
from schemas.grammar import BadGrammar, guidance_of

__all__ = ["Guidance", "Matcher", "compiled"]


def compiled(tokenizer: LLTokenizer, guidance: str) -> LLMatcher:
    """Return the library's matcher of a grammar in its own form. Raises BadGrammar.

    An ambiguous grammar takes longer with every token: its bound keeps a step below 0.1 s, and a
    reply that needs more is given up. A state of the lexer takes 2 kB.
    """
    matcher = LLMatcher(
        tokenizer,
        guidance,
        log_level=0,
        limits=LLParserLimits(
            step_max_items=limits.GRAMMAR_STEP_ITEMS_MAX,
            max_lexer_states=limits.GRAMMAR_LEXER_STATES_MAX,
            verbose_errors=False,
        ),
    )
    if matcher.is_error():
        raise BadGrammar(f"grammar: {matcher.get_error()}")
    return matcher


class Matcher:
    """Where a reply stands in its grammar."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def complete(self) -> bool:
        """True where the tokens taken so far are a whole reply."""
        return self._matcher.is_accepting()

    @property
    def stopped(self) -> bool:
        """True where nothing can follow, whether or not the reply is whole."""
        return self._matcher.is_stopped()

    def copy(self) -> Self:
        """Return another matcher that stands at the same place."""
        return type(self)(self._matcher.deep_copy())

    def take(self, token_ids: Sequence[int]) -> bool:
        """Go on by these tokens; return whether the grammar accepts them."""
        return self._matcher.consume_tokens(list(token_ids))

    def allowed(self) -> int:
        """Return the set of tokens that may come next, a bit for each; an end token is one too.

        Raises: BadGrammar where the grammar has grown too complex to follow.
        """
        mask = int.from_bytes(self._matcher.compute_bitmask(), "little")
        if self._matcher.is_error():
            raise BadGrammar(f"grammar: {self._matcher.get_error()}")
        return mask


class Guidance:
    """Grammars over the vocabulary of one model."""

    def __init__(self, tokenizer_json: str, *, vocab_size: int, eos_id: int) -> None:
        self._tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=eos_id)

    @classmethod
    def load(cls, model_path: Path, *, vocab_size: int, eos_id: int) -> Self:
        """Read a model folder's tokenizer.json; takes a second."""
        text = (model_path / "tokenizer.json").read_text(encoding="utf-8")
        return cls(text, vocab_size=vocab_size, eos_id=eos_id)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text in which no control token is understood."""
        return self._tokenizer.tokenize_str(text)

    def matcher(self, grammar: str) -> Matcher:
        """Compile `RequestAccepted.grammar`; may take a second. Raises BadGrammar."""
        return Matcher(compiled(self._tokenizer, guidance_of(grammar)))
