"""One choice whose reply is more than text: parsed into parts, or shown with log probabilities.

Owns what a choice needs beyond decoder and stop strings, and what was shown of it so far. The
assembler goes without where a header asks for neither, as most do: that is the hot path.
"""

from collections.abc import Sequence

from schemas.assembler.content import Block, blocks_of
from schemas.assembler.logprobs import HeldLogprobs, ShownLogprob, TokenText
from schemas.assembler.parts import Part, Text
from schemas.assembler.splitter import REASONING_PARSERS, TOOL_PARSERS, Splitter
from schemas.replies import Stop, StopReason, TokenLogprob
from schemas.requests import ReplyHeader

__all__ = ["DetailedChoice", "is_plain", "text_blocks"]


def is_plain(header: ReplyHeader) -> bool:
    """Tell whether a reply is text and nothing else."""
    return (
        header.tool_parser not in TOOL_PARSERS
        and header.reasoning_parser not in REASONING_PARSERS
        and header.logprobs is None
    )


class DetailedChoice:
    """Mutable state of one choice."""

    def __init__(self, header: ReplyHeader, token_text: TokenText) -> None:
        self._splitter = Splitter(
            tool_parser=header.tool_parser, reasoning_parser=header.reasoning_parser
        )
        self._held = None if header.logprobs is None else HeldLogprobs(header.logprobs, token_text)
        self._shows_thinking = header.reasoning_shown
        self._parts: list[Part] = []
        self._logprobs: list[ShownLogprob] = []
        self._waiting: list[ShownLogprob] = []
        """Of tokens that may turn out to open a thinking which is not shown."""
        self._tokens = 0
        self.thinking_tokens = 0

    def push(
        self, token_id: int, logprob: TokenLogprob | None, released: str, shown: str
    ) -> tuple[list[Part], list[ShownLogprob]]:
        """Take a token, what it released and what of all that may be shown; return the parts that
        it makes certain and the log probabilities that go with them."""
        was_thinking = self._splitter.thinking
        self._tokens += 1
        parts = self._splitter.push(shown) if shown else []
        is_thinking = was_thinking or self._splitter.thinking
        if is_thinking:
            # The first of them is its opening tag, which may have come in several tokens.
            self.thinking_tokens = self.thinking_tokens + 1 if was_thinking else self._tokens
        self._parts.extend(parts)
        if self._held is None:
            return parts, []
        entries = self._held.push(token_id, logprob, len(released), len(shown))
        if not self._shows_thinking:
            entries = self._visible(entries, is_thinking)
        self._logprobs.extend(entries)
        return parts, entries

    def end(self, stop: Stop, shown: str) -> tuple[list[Part], list[ShownLogprob]]:
        """Take the last text that may be shown; return what only the end makes certain."""
        was_thinking = self._splitter.thinking
        parts = self._splitter.push(shown) if shown else []
        parts.extend(self._splitter.end(cut=stop.reason is not StopReason.END))
        self._parts.extend(parts)
        entries = self._held.end(stop, len(shown)) if self._held is not None else []
        if not self._shows_thinking:
            entries = [] if was_thinking else [*self._waiting, *entries]
        self._logprobs.extend(entries)
        return parts, entries

    def _visible(self, entries: list[ShownLogprob], is_thinking: bool) -> list[ShownLogprob]:
        """Return those that name no token of the thinking."""
        waiting, self._waiting = [*self._waiting, *entries], []
        if self._splitter.undecided:
            self._waiting = waiting
            return []
        return [] if is_thinking else waiting

    def blocks(self) -> tuple[Block, ...]:
        """Return what was shown."""
        return blocks_of(self._parts)

    def logprobs(self) -> Sequence[ShownLogprob] | None:
        """Return the log probabilities that were shown; None where the request did not ask."""
        return None if self._held is None else self._logprobs


def text_blocks(texts: Sequence[str]) -> tuple[Block, ...]:
    """Return what was shown of a choice that is text and nothing else."""
    return blocks_of([Text("".join(texts))]) if texts else ()
