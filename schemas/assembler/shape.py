"""What a dialect has to say to the assembler."""

from collections.abc import Sequence
from typing import Protocol

from schemas.assembler.sse import Frame
from schemas.replies import Stop


class ReplyShape(Protocol):
    """Events and body of one reply in one dialect. Pure but for which blocks are open."""

    def opening(self) -> list[Frame]:
        """Return the events before the first token."""

    def text(self, choice: int, text: str) -> list[Frame]:
        """Return the events that show more text of a choice; `text` is not empty."""

    def finish(self, stops: Sequence[Stop], output_tokens: int) -> list[Frame]:
        """Return the events that end the reply."""

    def body(
        self, texts: Sequence[str], stops: Sequence[Stop], output_tokens: int
    ) -> dict[str, object]:
        """Return the whole reply as one object; texts and stops by choice."""

    def error(self, status: int, message: str, request_id: str) -> Frame:
        """Return the event of a reply that fails after its 200."""

    def keepalive(self) -> bytes:
        """Return bytes that keep a waiting client alive once the stream is open."""
