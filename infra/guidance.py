"""llguidance over one model's tokenizer: compiles grammars, and follows a reply under one.

Owns nothing but the library's use, without vLLM and torch. Called by the scripted engine and by
whoever checks grammars before work starts; vLLM uses the library by itself.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from llguidance import LLMatcher, LLTokenizer

from schemas.grammar import BadGrammar, guidance_of

__all__ = ["Guidance", "Matcher"]


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
        matcher = LLMatcher(self._tokenizer, guidance_of(grammar), log_level=0)
        if matcher.is_error():
            raise BadGrammar(f"grammar: {matcher.get_error()}")
        return Matcher(matcher)
