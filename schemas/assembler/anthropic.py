"""A reply as Anthropic's Messages API shows it.

Source: https://docs.anthropic.com/en/api/messages-streaming; anthropic-python 2.14.0's accumulator.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from schemas.assembler.content import Block, ShownChoice, TextBlock, ThinkingBlock, TokenCounts
from schemas.assembler.item_ids import item_id
from schemas.assembler.json_scan import completed
from schemas.assembler.logprobs import ShownLogprob
from schemas.assembler.parts import (
    Part,
    Text,
    Thinking,
    ThinkingEnd,
    ToolArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from schemas.assembler.sse import Frame, json_bytes
from schemas.dialects.anthropic import error_body
from schemas.replies import Stop, StopReason
from schemas.requests import ReplyHeader

_STOP_REASONS: Final = {
    StopReason.END: "end_turn",
    StopReason.LENGTH: "max_tokens",
    StopReason.STOP_SEQUENCE: "stop_sequence",
    StopReason.REFUSAL: "refusal",
}
_TOOL_PREFIX: Final = "toolu_"
_DELTA_NAME: Final = b"event: content_block_delta\n"
_MESSAGE_STOP: Final = Frame(b"event: message_stop\n", b'{"type":"message_stop"}')
_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'


class AnthropicReply:
    """One message: blocks one after the other, each opened by what it shows first, none empty."""

    sums_events = False

    def __init__(self, header: ReplyHeader, reply_id: str, sign: Callable[[str], str]) -> None:
        """Take what signs a thinking text."""
        assert header.choices == 1, "a message has one choice"
        self._header = header
        self._reply_id = reply_id
        self._sign = sign
        self._is_silent = header.max_tokens == 0
        """The prompt was to be put into the cache; the one token that did it does not show."""
        self._index = 0
        """The open block's, or the next one's."""
        self._open: type[Text] | type[Thinking] | type[ToolCallBegin] | None = None
        self._text_head = b""
        """A text delta of the open block, up to the text."""
        self._thought: list[str] = []

    def opening(self, cached_tokens: int) -> list[Frame]:
        """Return message_start."""
        # The hosted API counts one output token here; message_delta overwrites it.
        message = self._message([], None, TokenCounts(output=1, cached=cached_tokens))
        return [_frame("message_start", {"message": message})]

    def text(self, choice: int, text: str) -> list[Frame]:
        """Return a text delta, after the start of its block where it is the first."""
        if self._is_silent:
            return []
        if self._open is Text:
            return [Frame(_DELTA_NAME, b"%b%b}}" % (self._text_head, json_bytes(text)))]
        frames = self._begin(Text, {"type": "text", "text": ""})
        self._text_head = (
            b'{"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":'
            % self._index
        )
        return [*frames, *self.text(choice, text)]

    def part(self, choice: int, part: Part) -> list[Frame]:
        """Return the events of one part."""
        if self._is_silent:
            return []
        match part:
            case Text():
                return self.text(choice, part.text)
            case Thinking():
                return self._think(part.text)
            case ThinkingEnd():
                signature = self._sign("".join(self._thought))
                return [self._delta("signature_delta", "signature", signature), *self._end()]
            case ToolCallBegin():
                tool_id = item_id(_TOOL_PREFIX, self._reply_id, choice, part.index)
                block = {"type": "tool_use", "id": tool_id, "name": part.name, "input": {}}
                return self._begin(ToolCallBegin, block)
            case ToolArguments():
                return [self._delta("input_json_delta", "partial_json", part.text)]
            case ToolCallEnd():
                return self._end()

    def note(self, choice: int, logprobs: Sequence[ShownLogprob]) -> None:
        """Take numbers that this API does not show."""

    def finish(self, choices: Sequence[ShownChoice], counts: TokenCounts) -> list[Frame]:
        """Return the block's end, message_delta with the reason and all counts, message_stop."""
        (choice,) = choices
        counts = self._counted(counts)
        delta: dict[str, object] = {
            "stop_reason": self._stop_reason(choice),
            "stop_sequence": _stop_sequence(choice.stop),
        }
        if choice.stop.reason is StopReason.REFUSAL:
            delta["stop_details"] = _stop_details(choice.stop)
        # What message_delta says of the prompt overwrites message_start's: it says the same.
        usage = self._prompt_usage(counts.cached) | {"output_tokens": counts.output}
        if counts.thinking:
            usage["output_tokens_details"] = {"thinking_tokens": counts.thinking}
        return [
            *(self._end() if self._open else ()),
            _frame("message_delta", {"delta": delta, "usage": usage}),
            _MESSAGE_STOP,
        ]

    def body(self, choices: Sequence[ShownChoice], counts: TokenCounts) -> dict[str, object]:
        """Return the message; its content is empty where nothing came."""
        (choice,) = choices
        shown = [] if self._is_silent else [self._shown(block) for block in choice.blocks]
        return self._message(shown, choice, self._counted(counts))

    def error(self, status: int, message: str, request_id: str) -> Frame:
        """Return an error event."""
        body = error_body(status, message, request_id)
        return Frame(b"event: error\n", json_bytes(body))

    def keepalive(self) -> bytes:
        """Return a ping."""
        return _PING

    def _think(self, text: str) -> list[Frame]:
        frames = []
        if self._open is not Thinking:
            frames = self._begin(Thinking, {"type": "thinking", "thinking": "", "signature": ""})
            self._thought = []
        self._thought.append(text)
        if self._header.reasoning_shown:
            frames.append(self._delta("thinking_delta", "thinking", text))
        return frames

    def _begin(
        self,
        kind: type[Text] | type[Thinking] | type[ToolCallBegin],
        block: Mapping[str, object],
    ) -> list[Frame]:
        frames = self._end() if self._open else []
        self._open = kind
        start = {"index": self._index, "content_block": block}
        return [*frames, _frame("content_block_start", start)]

    def _end(self) -> list[Frame]:
        frame = _frame("content_block_stop", {"index": self._index})
        self._open = None
        self._index += 1
        return [frame]

    def _delta(self, kind: str, member: str, text: str) -> Frame:
        delta = {"index": self._index, "delta": {"type": kind, member: text}}
        return _frame("content_block_delta", delta)

    def _shown(self, block: Block) -> dict[str, object]:
        if isinstance(block, TextBlock):
            return {"type": "text", "text": block.text, "citations": None}
        if isinstance(block, ThinkingBlock):
            thinking = block.text if self._header.reasoning_shown else ""
            return {
                "type": "thinking",
                "thinking": thinking,
                "signature": self._sign(block.text),
            }
        arguments = block.arguments if block.complete else completed(block.arguments)
        return {
            "type": "tool_use",
            "id": item_id(_TOOL_PREFIX, self._reply_id, 0, block.index),
            "name": block.name,
            # To the letter: numbers may be larger than any type holds.
            "input": msgspec.Raw(arguments.encode()),
        }

    def _message(
        self, content: list[dict[str, object]], choice: ShownChoice | None, counts: TokenCounts
    ) -> dict[str, object]:
        return {
            "id": self._reply_id,
            "type": "message",
            "role": "assistant",
            "model": self._header.model_shown,
            "content": content,
            "stop_reason": None if choice is None else self._stop_reason(choice),
            "stop_sequence": None if choice is None else _stop_sequence(choice.stop),
            "stop_details": None if choice is None else _stop_details(choice.stop),
            "container": None,
            "usage": self._prompt_usage(counts.cached)
            | {
                "cache_creation": {
                    "ephemeral_5m_input_tokens": 0,
                    "ephemeral_1h_input_tokens": 0,
                },
                "output_tokens": counts.output,
                "output_tokens_details": {"thinking_tokens": counts.thinking},
                "server_tool_use": None,
                "service_tier": "standard",
                "speed": "standard",
                "inference_geo": None,
            },
        }

    def _counted(self, counts: TokenCounts) -> TokenCounts:
        return TokenCounts(output=0, cached=counts.cached) if self._is_silent else counts

    def _prompt_usage(self, cached_tokens: int) -> dict[str, object]:
        """Return the prompt's tokens in the three parts that add up to it; nobody pays for writing
        to the cache, so none are shown as written."""
        return {
            "input_tokens": self._header.prompt_tokens - cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached_tokens,
        }

    def _stop_reason(self, choice: ShownChoice) -> str:
        reason = choice.stop.reason
        if self._is_silent:
            return _STOP_REASONS[StopReason.LENGTH]
        if choice.awaits_tools:
            return "tool_use"
        if reason is StopReason.LENGTH and self._header.clipped:
            return "model_context_window_exceeded"
        return _STOP_REASONS[reason]


def _frame(name: str, members: dict[str, object]) -> Frame:
    return Frame(b"event: %b\n" % name.encode(), json_bytes({"type": name} | members))


def _stop_sequence(stop: Stop) -> str | None:
    return stop.stop_sequence if stop.reason is StopReason.STOP_SEQUENCE else None


def _stop_details(stop: Stop) -> dict[str, object] | None:
    if stop.reason is not StopReason.REFUSAL:
        return None
    return {"type": "refusal", "category": None, "explanation": None}
