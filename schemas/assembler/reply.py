"""The assembler: accepted token ids to dialect events and body, a pure function of them.

Owns text (through an incremental decoder), stop strings, event order and cursors. It does not judge
which tokens count (`schemas.fold`) and sends nothing. The gateway calls it for live, slow and
replayed readers alike, so whatever it makes must not depend on how the log's records were cut.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from schemas.assembler.anthropic import AnthropicReply
from schemas.assembler.choice import DetailedChoice, is_plain, text_blocks
from schemas.assembler.completions import CompletionReply
from schemas.assembler.content import ShownChoice, TokenCounts
from schemas.assembler.held_text import HeldText
from schemas.assembler.openai import OpenAiReply
from schemas.assembler.responses import ResponsesReply
from schemas.assembler.shape import ReplyShape
from schemas.assembler.sse import COMMENT, Frame, SseEvent, sse_event, unnumbered
from schemas.replies import ChoiceTokens, Stop, StopReason, Terminal, TokenLogprob
from schemas.requests import Dialect, ReplyHeader


class TokenDecoder(Protocol):
    """Token ids of one choice to text, in order."""

    def step(self, token_id: int) -> str:
        """Return the text that this token released: empty while a character is incomplete.

        Special tokens release nothing. No token id raises.
        """


class Assembler:
    """One reply on its way to one reader: `opening`, `feed` as often as tokens come, `finish`.

    `body` is what the stream added up to. Readers of nothing else call `whole` alone.
    """

    def __init__(
        self,
        header: ReplyHeader,
        reply_id: str,
        decoder: Callable[[], TokenDecoder],
        *,
        sign: Callable[[str], str] | None = None,
        token_text: Callable[[int], bytes] | None = None,
        text_of: Callable[[Sequence[int]], str | None] | None = None,
    ) -> None:
        """Take what a header needs: `sign` (a thinking text's signature) where Anthropic's API
        shows thinking, `token_text` (a token's bytes) where log probabilities are asked for.

        `text_of` returns at once what a decoder releases over all tokens, or None where it cannot.
        """
        self._text_of = text_of
        self._shape = _shape_of(header, reply_id, sign or _unsigned)
        self._decoders = [decoder() for _ in range(header.choices)]
        self._held = [HeldText(header.stop) for _ in range(header.choices)]
        self._texts: list[list[str]] = [[] for _ in range(header.choices)]
        """What was shown of each choice, where that is text and nothing else."""
        self._details = (
            None
            if is_plain(header)
            else [DetailedChoice(header, token_text or _untold) for _ in range(header.choices)]
        )
        self._tokens = 0
        self._cached_tokens = 0
        self._events = 0
        """Events since the last token: the second number of the cursor."""
        self._is_open = False
        self._ended: tuple[tuple[ShownChoice, ...], TokenCounts] | None = None

    def opening(self, cached_tokens: int | None = None) -> tuple[SseEvent, ...]:
        """Return the events before the first token; once, before `feed`.

        Args:
            cached_tokens: How many of the prompt's tokens were cached, as the fold tells with its
                first tokens; None of a reply that has none. Shown in each dialect's way.
        """
        assert not self._is_open and self._tokens == 0, "a reply opens once, before its tokens"
        self._is_open = True
        self._cached_tokens = cached_tokens or 0
        return self._numbered(self._shape.opening(self._cached_tokens))

    def feed(
        self,
        choice: int,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprob] | None = None,
    ) -> tuple[SseEvent, ...]:
        """Take the next accepted tokens of a choice; return the events they release.

        One token releases its own events, never shared with its neighbours. `logprobs` are by
        token; where they are not, which no worker of ours writes, none are shown.
        """
        assert self._ended is None, "nothing counts after the end"
        if self._details is not None:
            return self._feed_in_detail(choice, token_ids, logprobs)
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
        assert self._ended is None, "a reply ends once"
        assert len(stops) == len(self._held), "one stop for each choice"
        frames: list[Frame] = []
        for choice, stop in enumerate(stops):
            frames.extend(self._end(choice, stop))
        shown = tuple(self._shown(choice, stop) for choice, stop in enumerate(stops))
        thinking = sum(detail.thinking_tokens for detail in self._details or ())
        counts = TokenCounts(output=self._tokens, thinking=thinking, cached=self._cached_tokens)
        self._ended = shown, counts
        frames.extend(self._shape.finish(*self._ended))
        return self._numbered(frames)

    def whole(self, terminal: Terminal, cached_tokens: int | None = None) -> dict[str, object]:
        """Return the body of a reply that ended so; instead of all other calls, and equal to them.

        Choices are shown apart in a body, so that it does not matter how their tokens were mixed.
        `cached_tokens` as in `opening`.
        """
        assert self._tokens == 0 and self._ended is None, "instead of all other calls"
        self._cached_tokens = cached_tokens or 0
        tokens = sorted(terminal.tokens, key=lambda part: (part.segment, part.choice))
        texts = self._texts_of(tokens)
        if texts is None:
            for part in tokens:
                self.feed(part.choice, part.token_ids, part.logprobs)
            self.finish(terminal.stops)
            return self.body()
        shown = tuple(
            ShownChoice(blocks=text_blocks(text), stop=stop)
            for text, stop in zip(texts, terminal.stops, strict=True)
        )
        counts = TokenCounts(
            output=sum(len(part.token_ids) for part in tokens), cached=self._cached_tokens
        )
        return self._shape.body(shown, counts)

    def body(self) -> dict[str, object]:
        """Return the non-stream response, after `finish`; equal to what the stream adds up to.

        For `msgspec.json.encode`: arguments of tool calls may stand in it as JSON text.
        """
        assert self._ended is not None, "a body needs the end"
        return self._shape.body(*self._ended)

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

    def _texts_of(self, tokens: Sequence[ChoiceTokens]) -> list[list[str]] | None:
        """Return the pieces of text of each choice, where the reply is text and nothing else, with
        nothing held back, and its shape makes a body of that alone."""
        if self._details is not None or self._text_of is None:
            return None
        if self._shape.sums_events or not all(held.is_free for held in self._held):
            return None
        texts: list[list[str]] = [[] for _ in self._held]
        for part in tokens:
            text = self._text_of(part.token_ids)
            if text is None:
                return None
            if text:
                texts[part.choice].append(text)
        return texts

    def _feed_in_detail(
        self, choice: int, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] | None
    ) -> tuple[SseEvent, ...]:
        assert self._details is not None, "a plain reply has no details"
        if logprobs is not None and len(logprobs) != len(token_ids):
            logprobs = None
        decoder, held = self._decoders[choice], self._held[choice]
        detail = self._details[choice]
        events: list[SseEvent] = []
        for index, token_id in enumerate(token_ids):
            self._tokens += 1
            self._events = 0
            released = decoder.step(token_id)
            logprob = logprobs[index] if logprobs is not None else None
            parts, entries = detail.push(token_id, logprob, released, held.push(released))
            if entries:
                self._shape.note(choice, entries)
            for part in parts:
                events.extend(self._numbered(self._shape.part(choice, part)))
        return tuple(events)

    def _end(self, choice: int, stop: Stop) -> list[Frame]:
        """Return the frames of what was held back of a choice."""
        matched = stop.stop_sequence if stop.reason is StopReason.STOP_SEQUENCE else None
        text = self._held[choice].end(matched)
        if self._details is None:
            if not text:
                return []
            self._texts[choice].append(text)
            return self._shape.text(choice, text)
        parts, entries = self._details[choice].end(stop, text)
        if entries:
            self._shape.note(choice, entries)
        return [frame for part in parts for frame in self._shape.part(choice, part)]

    def _shown(self, choice: int, stop: Stop) -> ShownChoice:
        if self._details is None:
            return ShownChoice(blocks=text_blocks(self._texts[choice]), stop=stop)
        detail = self._details[choice]
        logprobs = detail.logprobs()
        return ShownChoice(
            blocks=detail.blocks(),
            stop=stop,
            logprobs=None if logprobs is None else tuple(logprobs),
        )

    def _numbered(self, frames: Sequence[Frame]) -> tuple[SseEvent, ...]:
        first = self._events + 1
        self._events += len(frames)
        if len(frames) == 1:  # nearly always
            return (sse_event(frames[0], self._tokens, first),)
        return tuple(
            sse_event(frame, self._tokens, first + index) for index, frame in enumerate(frames)
        )


def _shape_of(header: ReplyHeader, reply_id: str, sign: Callable[[str], str]) -> ReplyShape:
    match header.dialect:
        case Dialect.ANTHROPIC:
            return AnthropicReply(header, reply_id, sign)
        case Dialect.OPENAI:
            return OpenAiReply(header, reply_id)
        case Dialect.COMPLETIONS:
            return CompletionReply(header, reply_id)
        case Dialect.RESPONSES:
            return ResponsesReply(header, reply_id)


def _unsigned(thinking: str) -> str:
    raise AssertionError("a reply that thinks needs `sign`")


def _untold(token_id: int) -> bytes:
    raise AssertionError("a reply with log probabilities needs `token_text`")
