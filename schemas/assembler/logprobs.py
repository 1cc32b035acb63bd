"""Log probabilities as clients see them: beside the text that their tokens made.

Owns which tokens' numbers are shown and when: a token's with the first character of its text, so
never with a stop string's, and never the token's that ends a reply. Their texts put together are
the reply's text.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from schemas.replies import Stop, StopReason, TokenLogprob

__all__ = ["HeldLogprobs", "ShownLogprob", "TokenText", "chat_logprob", "legacy_logprobs"]

TokenText = Callable[[int], bytes]
"""From a token's id to the bytes that it stands for."""

_LOWEST: Final = -9_999.0
"""Shown for what has no chance at all: JSON knows no infinity."""


class ShownToken(Struct, frozen=True, kw_only=True):
    """A token and how likely it was."""

    text: bytes
    logprob: float


class ShownLogprob(Struct, frozen=True, kw_only=True):
    """One position of the reply: the drawn token and the likeliest ones."""

    drawn: ShownToken
    top: tuple[ShownToken, ...]
    offset: int
    """Characters of the choice's text before it."""


class HeldLogprobs:
    """Mutable state of one choice: the tokens whose text is not shown yet."""

    __slots__ = ("_held", "_released", "_shown", "_token_text", "_top")

    def __init__(self, top: int, token_text: TokenText) -> None:
        """Take how many of the likeliest tokens are shown at each position."""
        self._top = top
        self._token_text = token_text
        self._held: deque[tuple[ShownLogprob, bool]] = deque()
        """With whether the token released text."""
        self._released = 0
        self._shown = 0

    def push(
        self, token_id: int, logprob: TokenLogprob | None, released: int, shown: int
    ) -> list[ShownLogprob]:
        """Take a token and how many characters it released and how many are shown; return whose
        numbers go with those."""
        if logprob is not None:
            entry = ShownLogprob(
                drawn=self._token(token_id, logprob.logprob),
                top=tuple(
                    self._token(each.token_id, each.logprob) for each in logprob.top[: self._top]
                ),
                offset=self._released,
            )
            self._held.append((entry, released > 0))
        self._released += released
        self._shown += shown
        return self._beginning_before(self._shown)

    def end(self, stop: Stop, shown: int) -> list[ShownLogprob]:
        """Return the rest; `shown` characters were shown at the end."""
        self._shown += shown
        entries = self._beginning_before(self._shown)
        if stop.reason is not StopReason.STOP_SEQUENCE:
            ends_itself = stop.reason is StopReason.END and self._held and not self._held[-1][1]
            if ends_itself:
                self._held.pop()
            entries.extend(entry for entry, _ in self._held)
        self._held.clear()
        return entries

    def _beginning_before(self, offset: int) -> list[ShownLogprob]:
        entries = []
        while self._held and self._held[0][0].offset < offset:
            entries.append(self._held.popleft()[0])
        return entries

    def _token(self, token_id: int, logprob: float) -> ShownToken:
        return ShownToken(text=self._token_text(token_id), logprob=max(logprob, _LOWEST))


def chat_logprob(entry: ShownLogprob) -> dict[str, object]:
    """Return a position as Chat Completions and Responses show it."""
    return _chat_token(entry.drawn) | {"top_logprobs": [_chat_token(each) for each in entry.top]}


def legacy_logprobs(entries: Sequence[ShownLogprob], top: int) -> dict[str, object]:
    """Return positions as Completions shows them: four lists side by side."""
    tops = [_by_text((*entry.top, entry.drawn)) for entry in entries]
    return {
        "tokens": [_legacy_text(entry.drawn.text) for entry in entries],
        "token_logprobs": [entry.drawn.logprob for entry in entries],
        "top_logprobs": tops if top else None,
        "text_offset": [entry.offset for entry in entries],
    }


def _chat_token(token: ShownToken) -> dict[str, object]:
    return {
        "token": token.text.decode(errors="replace"),
        "logprob": token.logprob,
        "bytes": list(token.text),
    }


def _by_text(tokens: Iterable[ShownToken]) -> dict[str, float]:
    return {_legacy_text(token.text): token.logprob for token in tokens}


def _legacy_text(text: bytes) -> str:
    """Return a token's text; where it is no whole text its bytes, as OpenAI spells them."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text)
