"""From accepted token ids to what the client is sent, per dialect (skeleton)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from schemas.replies import Stop
from schemas.requests import ReplyHeader


class TokenDecoder(Protocol):
    """Token ids of one choice to text, in order."""

    def step(self, token_id: int) -> str:
        """Return the text that this token released; empty while a character is incomplete."""


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One server-sent event: its cursor and its complete bytes."""

    cursor: str
    payload: bytes


class Assembler:
    """Turn one reply's accepted tokens into its dialect's events and body."""

    def __init__(
        self, header: ReplyHeader, reply_id: str, decoder: Callable[[], TokenDecoder]
    ) -> None: ...

    def opening(self) -> tuple[SseEvent, ...]:
        """Return the events before the first token."""
        raise NotImplementedError

    def feed(
        self, choice: int, token_ids: Sequence[int], cached_tokens: int | None = None
    ) -> tuple[SseEvent, ...]:
        """Take the next accepted tokens of a choice."""
        raise NotImplementedError

    def finish(self, stops: tuple[Stop, ...]) -> tuple[SseEvent, ...]:
        """End the reply; `stops` by choice."""
        raise NotImplementedError

    def body(self) -> dict[str, object]:
        """Return the non-stream response, after `finish`."""
        raise NotImplementedError

    def error_event(self, status: int, message: str, request_id: str) -> SseEvent:
        """Return the event that ends a failed stream; it has no `id:`. Abort the body after it."""
        raise NotImplementedError

    def keepalive(self) -> bytes:
        """Return bytes that keep a waiting client alive: a comment, or a ping once opened (Anthropic)."""
        raise NotImplementedError
