"""The assembler: accepted token ids to dialect events and body, a pure function of them.

Owns text (through an incremental decoder), stop strings, event order and cursors. It does not judge
which tokens count (`schemas.fold`) and sends nothing. The gateway calls it for live, slow and
replayed readers alike, so whatever it makes must not depend on how the log's records were cut.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from schemas.assembler.anthropic import AnthropicReply
from schemas.assembler.held_text import HeldText
from schemas.assembler.openai import OpenAiReply
from schemas.assembler.shape import ReplyShape
from schemas.assembler.sse import COMMENT, Frame, SseEvent, sse_event, unnumbered
from schemas.replies import Stop, StopReason
from schemas.requests import Dialect, ReplyHeader


class TokenDecoder(Protocol):
    """Token ids of one choice to text, in order."""

    def step(self, token_id: int) -> str:
        """Return the text that this token released: empty while a character is incomplete.

        Special tokens release nothing. No token id raises.
        """


class Assembler:
    """One reply on its way to one reader: `opening`, `feed` as often as tokens come, `finish`.

    Non-stream readers call `feed` and `finish` too, drop the events, and take `body`.
    """

    def __init__(
        self, header: ReplyHeader, reply_id: str, decoder: Callable[[], TokenDecoder]
    ) -> None:
        shape = AnthropicReply if header.dialect is Dialect.ANTHROPIC else OpenAiReply
        self._shape: ReplyShape = shape(header, reply_id)
        self._decoders = [decoder() for _ in range(header.choices)]
        self._held = [HeldText(header.stop) for _ in range(header.choices)]
        self._texts: list[list[str]] = [[] for _ in range(header.choices)]
        self._tokens = 0
        self._events = 0
        """Events since the last token: the second number of the cursor."""
        self._is_open = False
        self._stops: tuple[Stop, ...] | None = None

    def opening(self) -> tuple[SseEvent, ...]:
        """Return the events before the first token; once, before `feed`."""
        assert not self._is_open and self._tokens == 0, "a reply opens once, before its tokens"
        self._is_open = True
        return self._numbered(self._shape.opening())

    def feed(
        self, choice: int, token_ids: Sequence[int], cached_tokens: int | None = None
    ) -> tuple[SseEvent, ...]:
        """Take the next accepted tokens of a choice; return the events they release.

        One token releases its own events, never shared with its neighbours. `cached_tokens` is
        shown as 0 in both dialects as long as cached tokens have no price of their own.
        """
        assert self._stops is None, "nothing counts after the end"
        decoder, held = self._decoders[choice], self._held[choice]
        texts = self._texts[choice]
        events: list[SseEvent] = []
        for token_id in token_ids:
            self._tokens += 1
            self._events = 0
            text = held.push(decoder.step(token_id))
            if text:
                texts.append(text)
                events.extend(self._numbered(self._shape.text(choice, text)))
        return tuple(events)

    def finish(self, stops: tuple[Stop, ...]) -> tuple[SseEvent, ...]:
        """End the reply: show what was held back, cut at the stop string; `stops` by choice."""
        assert self._stops is None, "a reply ends once"
        assert len(stops) == len(self._held), "one stop for each choice"
        self._stops = stops
        frames: list[Frame] = []
        for choice, stop in enumerate(stops):
            matched = stop.stop_sequence if stop.reason is StopReason.STOP_SEQUENCE else None
            text = self._held[choice].end(matched)
            if text:
                self._texts[choice].append(text)
                frames.extend(self._shape.text(choice, text))
        frames.extend(self._shape.finish(stops, self._tokens))
        return self._numbered(frames)

    def body(self) -> dict[str, object]:
        """Return the non-stream response, after `finish`; equal to what the stream adds up to."""
        assert self._stops is not None, "a body needs the end"
        return self._shape.body(
            ["".join(texts) for texts in self._texts], self._stops, self._tokens
        )

    def error_event(self, status: int, message: str, request_id: str) -> SseEvent:
        """Return the event of a reply that fails after its 200; abort the body after it.

        It has no `id:`, so that a client resumes after the last event that belongs to the reply;
        its cursor is that event's.
        """
        frame = self._shape.error(status, message, request_id)
        return SseEvent(f"{self._tokens}-{self._events}", unnumbered(frame))

    def keepalive(self) -> bytes:
        """Return what keeps a client waiting: before `opening` a comment, then the dialect's."""
        return self._shape.keepalive() if self._is_open else COMMENT

    def _numbered(self, frames: Sequence[Frame]) -> tuple[SseEvent, ...]:
        first = self._events + 1
        self._events += len(frames)
        return tuple(
            sse_event(frame, self._tokens, first + index) for index, frame in enumerate(frames)
        )
