"""Prompts: chat template and tokenizer, off the event loop where they take long.

Owns the model's tokenizer once it is loaded and the bound that proves a prompt too long unread.
Called by the handlers that generate or count.
"""

import asyncio
from collections.abc import Callable, Sequence

from gateway.drafting import prompt_member, prompt_too_long
from gateway.errors import Overloaded
from infra.prompt_text import Prompt, UnrenderablePrompt
from infra.tokenizer import Tokenizer
from schemas.assembler import TokenDecoder
from schemas.dialects.canonical import CanonicalRequest, InvalidRequest
from schemas.tool_prompt import texts_of

__all__ = ["Prompts"]

_INLINE_CHARS_MAX = 2_048
"""Below this a thread hop costs more than the work (about 0.3 ms), and others wait no longer."""
_INLINE_MESSAGES_MAX = 64


class Prompts:
    """Turns requests into prompt tokens, and tokens back into text."""

    def __init__(self, load: Callable[[], Tokenizer], context_tokens: int) -> None:
        self._load = load
        self._context_tokens = context_tokens
        self._tokenizer: Tokenizer | None = None

    @property
    def loaded(self) -> bool:
        """True once prompts can be made."""
        return self._tokenizer is not None

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's. Raises Overloaded before it is loaded."""
        return self._require()

    async def load(self) -> None:
        """Load the tokenizer in a thread. Raises StartupError; may be repeated."""
        self._tokenizer = await asyncio.to_thread(self._load)

    async def tokens(self, canonical: CanonicalRequest) -> list[int]:
        """Return the prompt tokens of a request: of its conversation and tools, or of its prompt.

        Raises: InvalidRequest where the template refuses it, its length alone proves it too long,
            or it holds ids of no token; Overloaded before the tokenizer is loaded.
        """
        tokenizer = self._require()
        if _is_short(canonical):
            return self._encode(tokenizer, canonical)
        return await asyncio.to_thread(self._encode, tokenizer, canonical)

    def decoder(self) -> TokenDecoder:
        """Return a fresh incremental decoder. Raises Overloaded before the tokenizer is loaded."""
        return self._require().decoder()

    def text_of(self, token_ids: Sequence[int]) -> str | None:
        """Return what a decoder would release over all these tokens, where that is known at once.

        Raises: Overloaded before the tokenizer is loaded.
        """
        return self._require().released_by(token_ids)

    def token_text(self, token_id: int) -> bytes:
        """Return the bytes of one token. Raises Overloaded before the tokenizer is loaded."""
        return self._require().token_text(token_id)

    def _require(self) -> Tokenizer:
        if self._tokenizer is None:
            raise Overloaded("Overloaded: the model's tokenizer is loading")
        return self._tokenizer

    def _encode(self, tokenizer: Tokenizer, canonical: CanonicalRequest) -> list[int]:
        given = canonical.prompt
        if isinstance(given, tuple):
            return self._checked(canonical, given, tokenizer.vocabulary_size)
        if given is not None:
            return self._tokenized(canonical, tokenizer, tokenizer.raw(given))
        offered = () if canonical.tool_choice.mode == "none" else canonical.tools
        thinking = canonical.thinking
        try:
            prompt = tokenizer.render(
                canonical.messages,
                tools=offered,
                enable_thinking=None if thinking is None else thinking.enabled,
            )
        except UnrenderablePrompt as error:
            raise InvalidRequest(prompt_member(canonical), str(error)) from error
        return self._tokenized(canonical, tokenizer, prompt)

    def _tokenized(
        self, canonical: CanonicalRequest, tokenizer: Tokenizer, prompt: Prompt
    ) -> list[int]:
        # Only a proof above the window refuses unread: nothing that fits is ever turned away.
        least_tokens = tokenizer.tokens_at_least(prompt)
        if least_tokens >= self._context_tokens:
            raise prompt_too_long(canonical, f"at least {least_tokens}", self._context_tokens)
        tokens = tokenizer.encode(prompt)
        if not tokens:
            raise InvalidRequest(prompt_member(canonical), "must hold at least one token")
        return tokens

    def _checked(
        self, canonical: CanonicalRequest, token_ids: tuple[int, ...], vocabulary_size: int
    ) -> list[int]:
        if len(token_ids) >= self._context_tokens:
            raise prompt_too_long(canonical, str(len(token_ids)), self._context_tokens)
        if max(token_ids) >= vocabulary_size:
            raise InvalidRequest("prompt", f"token ids must be below {vocabulary_size}")
        return list(token_ids)


def _is_short(canonical: CanonicalRequest) -> bool:
    """Tell whether making the prompt takes less than a thread hop; tools always take more."""
    if canonical.tools or len(canonical.messages) > _INLINE_MESSAGES_MAX:
        return False
    if canonical.prompt is not None:
        return len(canonical.prompt) <= _INLINE_CHARS_MAX
    return sum(map(len, texts_of(canonical.messages, ()))) <= _INLINE_CHARS_MAX
