"""Prompts: chat template and tokenizer, off the event loop where they take long.

Owns the model's tokenizer once it is loaded and the bound that proves a prompt too long unread.
Called by the handlers of messages, chat completions and count_tokens.
"""

import asyncio
from collections.abc import Callable, Sequence

from gateway.drafting import prompt_too_long
from gateway.errors import Overloaded
from infra.tokenizer import Tokenizer, UnrenderablePrompt
from schemas.assembler import TokenDecoder
from schemas.dialects.canonical import CanonicalMessage, InvalidRequest

__all__ = ["Prompts"]

_INLINE_CHARS_MAX = 2_048
"""Below this a thread hop costs more than the work (about 0.3 ms), and others wait no longer."""
_INLINE_MESSAGES_MAX = 64


class Prompts:
    """Turns messages into prompt tokens, and tokens back into text."""

    def __init__(self, load: Callable[[], Tokenizer], context_tokens: int) -> None:
        self._load = load
        self._context_tokens = context_tokens
        self._tokenizer: Tokenizer | None = None

    @property
    def loaded(self) -> bool:
        """True once prompts can be made."""
        return self._tokenizer is not None

    async def load(self) -> None:
        """Load the tokenizer in a thread. Raises StartupError; may be repeated."""
        self._tokenizer = await asyncio.to_thread(self._load)

    async def tokens(self, messages: Sequence[CanonicalMessage]) -> list[int]:
        """Return the prompt tokens of a conversation.

        Raises: InvalidRequest where the template refuses it or its length alone proves it too long;
            Overloaded before the tokenizer is loaded.
        """
        tokenizer = self._require()
        few = len(messages) <= _INLINE_MESSAGES_MAX  # else their texts are not even counted here
        if few and sum(len(message.text) for message in messages) <= _INLINE_CHARS_MAX:
            return self._encode(tokenizer, messages)
        return await asyncio.to_thread(self._encode, tokenizer, messages)

    def decoder(self) -> TokenDecoder:
        """Return a fresh incremental decoder. Raises Overloaded before the tokenizer is loaded."""
        return self._require().decoder()

    def token_text(self, token_id: int) -> bytes:
        """Return the bytes of one token. Raises Overloaded before the tokenizer is loaded."""
        return self._require().token_text(token_id)

    def _require(self) -> Tokenizer:
        if self._tokenizer is None:
            raise Overloaded("Overloaded: the model's tokenizer is loading")
        return self._tokenizer

    def _encode(self, tokenizer: Tokenizer, messages: Sequence[CanonicalMessage]) -> list[int]:
        try:
            prompt = tokenizer.render(messages)
        except UnrenderablePrompt as error:
            raise InvalidRequest("messages", str(error)) from error
        # Only a proof above the window refuses unread: nothing that fits is ever turned away.
        least_tokens = tokenizer.tokens_at_least(prompt)
        if least_tokens >= self._context_tokens:
            raise prompt_too_long(f"at least {least_tokens}", self._context_tokens)
        return tokenizer.encode(prompt)
