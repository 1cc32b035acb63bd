"""A reply as OpenAI's Completions API shows it: text and nothing else.

Source: https://platform.openai.com/docs/api-reference/completions.
"""

from collections.abc import Sequence
from typing import Final

from schemas.assembler.content import ShownChoice, TokenCounts
from schemas.assembler.logprobs import ShownLogprob, legacy_logprobs
from schemas.assembler.openai import DONE, FINISH_REASONS, usage
from schemas.assembler.parts import Part, Text
from schemas.assembler.sse import COMMENT, Frame, json_bytes
from schemas.dialects.openai import error_body
from schemas.requests import ReplyHeader

_OBJECT: Final = "text_completion"


class CompletionReply:
    """One completion of one or more choices; chunks have the shape of the body."""

    sums_events = False

    def __init__(self, header: ReplyHeader, reply_id: str) -> None:
        self._header = header
        self._reply_id = reply_id
        self._chunk_head = json_bytes(self._envelope())[:-1] + b',"choices":['
        # Clients that did not ask for usage must not meet the member at all.
        self._null_usage = b',"usage":null}' if header.include_usage else b"}"
        self._text_heads = [
            self._chunk_head + b'{"index":%d,"text":' % choice for choice in range(header.choices)
        ]
        self._text_tail = b',"logprobs":null,"finish_reason":null}]' + self._null_usage
        self._noted: list[list[ShownLogprob]] = [[] for _ in range(header.choices)]

    def opening(self, cached_tokens: int) -> list[Frame]:
        """Return nothing: this API has no event before the first text."""
        return []

    def text(self, choice: int, text: str) -> list[Frame]:
        """Return one chunk."""
        return [Frame(b"", self._text_heads[choice] + json_bytes(text) + self._text_tail)]

    def part(self, choice: int, part: Part) -> list[Frame]:
        """Return one chunk for text; the API knows no other parts."""
        if not isinstance(part, Text):
            return []
        if self._noted[choice]:
            return [self._chunk(choice, part.text)]
        return self.text(choice, part.text)

    def note(self, choice: int, logprobs: Sequence[ShownLogprob]) -> None:
        """Take numbers for the next chunk of a choice."""
        self._noted[choice].extend(logprobs)

    def finish(self, choices: Sequence[ShownChoice], counts: TokenCounts) -> list[Frame]:
        """Return a chunk with the reason for each choice, usage where asked for, and `[DONE]`."""
        frames = [
            self._chunk(index, "", FINISH_REASONS[choice.stop.reason])
            for index, choice in enumerate(choices)
        ]
        if self._header.include_usage:
            shown = json_bytes(usage(self._header, counts))
            frames.append(Frame(b"", b'%b],"usage":%b}' % (self._chunk_head, shown)))
        return [*frames, DONE]

    def body(self, choices: Sequence[ShownChoice], counts: TokenCounts) -> dict[str, object]:
        """Return the completion."""
        shown = [
            self._choice(index, choice.text, choice.logprobs, FINISH_REASONS[choice.stop.reason])
            for index, choice in enumerate(choices)
        ]
        return self._envelope() | {"choices": shown, "usage": usage(self._header, counts)}

    def error(self, status: int, message: str, request_id: str) -> Frame:
        """Return a chunk that the SDK raises as an error."""
        return Frame(b"", json_bytes(error_body(status, message, request_id)))

    def keepalive(self) -> bytes:
        """Return a comment: the SDK takes every event for JSON."""
        return COMMENT

    def _chunk(self, choice: int, text: str, finish: str | None = None) -> Frame:
        shown = self._choice(choice, text, self._noted[choice] or None, finish)
        self._noted[choice].clear()
        return Frame(b"", b"%b%b]%b" % (self._chunk_head, json_bytes(shown), self._null_usage))

    def _choice(
        self,
        index: int,
        text: str,
        logprobs: Sequence[ShownLogprob] | None,
        finish: str | None,
    ) -> dict[str, object]:
        top = self._header.logprobs or 0
        return {
            "index": index,
            "text": text,
            "logprobs": None if logprobs is None else legacy_logprobs(logprobs, top),
            "finish_reason": finish,
        }

    def _envelope(self) -> dict[str, object]:
        return {
            "id": self._reply_id,
            "object": _OBJECT,
            "created": self._header.created_ms // 1_000,
            "model": self._header.model_shown,
            "system_fingerprint": None,
        }
