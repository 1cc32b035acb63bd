"""What a dialect has to say to the assembler."""

from collections.abc import Sequence
from typing import Protocol

from schemas.assembler.content import ShownChoice, TokenCounts
from schemas.assembler.logprobs import ShownLogprob
from schemas.assembler.parts import Part
from schemas.assembler.sse import Frame


class ReplyShape(Protocol):
    """Events and body of one reply in one dialect. Pure but for what is open, and counted."""

    sums_events: bool
    """True where `body` needs that the events were made before."""

    def opening(self, cached_tokens: int) -> list[Frame]:
        """Return the events before the first token; `cached_tokens` of the prompt were cached."""

    def text(self, choice: int, text: str) -> list[Frame]:
        """Return the events that show more text of a choice, not empty, with nothing noted."""

    def part(self, choice: int, part: Part) -> list[Frame]:
        """Return the events that show a part of a choice; text too."""

    def note(self, choice: int, logprobs: Sequence[ShownLogprob]) -> None:
        """Take numbers that go with what is shown next of a choice, or else with its end."""

    def finish(self, choices: Sequence[ShownChoice], counts: TokenCounts) -> list[Frame]:
        """Return the events that end the reply."""

    def body(self, choices: Sequence[ShownChoice], counts: TokenCounts) -> dict[str, object]:
        """Return the whole reply as one object."""

    def error(self, status: int, message: str, request_id: str) -> Frame:
        """Return the event of a reply that fails after its 200."""

    def keepalive(self) -> bytes:
        """Return bytes that keep a waiting client alive once the stream is open."""
