"""A reply as OpenAI's Chat Completions API shows it.

Source: https://platform.openai.com/docs/api-reference/chat; openai-python 3.57.0's accumulator.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from schemas.assembler.content import ShownChoice, TokenCounts
from schemas.assembler.item_ids import item_id
from schemas.assembler.logprobs import ShownLogprob, chat_logprob
from schemas.assembler.parts import (
    Part,
    Text,
    Thinking,
    ThinkingEnd,
    ToolArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from schemas.assembler.sse import COMMENT, Frame, json_bytes
from schemas.dialects.openai import error_body
from schemas.dialects.openai_functions import FUNCTIONS_VERSION
from schemas.replies import StopReason
from schemas.requests import ReplyHeader

__all__ = ["DONE", "FINISH_REASONS", "OpenAiReply", "usage"]

FINISH_REASONS: Final = {
    StopReason.END: "stop",
    StopReason.LENGTH: "length",
    StopReason.STOP_SEQUENCE: "stop",
    StopReason.REFUSAL: "content_filter",
}
DONE: Final = Frame(b"", b"[DONE]")
_SERVICE_TIER: Final = "default"
_TOOL_PREFIX: Final = "call_"


class OpenAiReply:
    """One completion of one or more choices; everything but the text is rendered once."""

    sums_events = False

    def __init__(self, header: ReplyHeader, reply_id: str) -> None:
        self._header = header
        self._reply_id = reply_id
        self._in_functions = header.dialect_version == FUNCTIONS_VERSION
        head = json_bytes(self._envelope("chat.completion.chunk"))
        # Clients that did not ask for usage must not meet the member at all.
        self._null_usage = b',"usage":null}' if header.include_usage else b"}"
        self._chunk_head = head[:-1] + b',"choices":['
        self._text_heads = [
            self._chunk_head + b'{"index":%d,"delta":{"content":' % choice
            for choice in range(header.choices)
        ]
        self._text_tail = b'},"logprobs":null,"finish_reason":null}]' + self._null_usage
        self._noted: list[list[ShownLogprob]] = [[] for _ in range(header.choices)]

    def opening(self, cached_tokens: int) -> list[Frame]:
        """Return one chunk with the role for each choice, in order."""
        # A reply of calls alone has no content, not an empty one; SDKs add the pieces up.
        content = "" if self._header.tool_parser is None else None
        role = {"role": "assistant", "content": content, "refusal": None}
        return [self._chunk(choice, role) for choice in range(self._header.choices)]

    def text(self, choice: int, text: str) -> list[Frame]:
        """Return one chunk."""
        return [Frame(b"", self._text_heads[choice] + json_bytes(text) + self._text_tail)]

    def part(self, choice: int, part: Part) -> list[Frame]:
        """Return one chunk, or none where the dialect has no words for the part."""
        match part:
            case Text():
                if self._noted[choice]:
                    return [self._chunk(choice, {"content": part.text})]
                return self.text(choice, part.text)
            case Thinking():
                if not self._header.reasoning_shown:
                    return []
                return [self._chunk(choice, {"reasoning_content": part.text})]
            case ToolCallBegin() if self._in_functions:
                return [self._chunk(choice, _function_call(part.name, ""))]
            case ToolArguments() if self._in_functions:
                return [self._chunk(choice, {"function_call": {"arguments": part.text}})]
            case ToolCallBegin():
                # Everything but the arguments once only: SDKs put repeated strings together.
                call = {
                    "index": part.index,
                    "id": item_id(_TOOL_PREFIX, self._reply_id, choice, part.index),
                    "type": "function",
                    "function": {"name": part.name, "arguments": ""},
                }
                return [self._chunk(choice, {"tool_calls": [call]})]
            case ToolArguments():
                call = {"index": part.index, "function": {"arguments": part.text}}
                return [self._chunk(choice, {"tool_calls": [call]})]
            case ThinkingEnd() | ToolCallEnd():
                return []

    def note(self, choice: int, logprobs: Sequence[ShownLogprob]) -> None:
        """Take numbers for the next chunk of a choice."""
        self._noted[choice].extend(logprobs)

    def finish(self, choices: Sequence[ShownChoice], counts: TokenCounts) -> list[Frame]:
        """Return a chunk with the reason for each choice, usage where asked for, and `[DONE]`."""
        frames = [
            self._chunk(index, {}, self._finish_reason(choice))
            for index, choice in enumerate(choices)
        ]
        if self._header.include_usage:
            shown = json_bytes(usage(self._header, counts))
            frames.append(Frame(b"", b'%b],"usage":%b}' % (self._chunk_head, shown)))
        return [*frames, DONE]

    def body(self, choices: Sequence[ShownChoice], counts: TokenCounts) -> dict[str, object]:
        """Return the completion; content is the empty string where no text came."""
        shown = [
            {
                "index": index,
                "message": self._message(index, choice),
                "logprobs": _logprobs(choice.logprobs),
                "finish_reason": self._finish_reason(choice),
            }
            for index, choice in enumerate(choices)
        ]
        return self._envelope("chat.completion") | {
            "choices": shown,
            "usage": usage(self._header, counts),
        }

    def error(self, status: int, message: str, request_id: str) -> Frame:
        """Return a chunk that the SDK raises as an error."""
        return Frame(b"", json_bytes(error_body(status, message, request_id)))

    def keepalive(self) -> bytes:
        """Return a comment: the SDK takes every event for JSON."""
        return COMMENT

    def _chunk(self, choice: int, delta: Mapping[str, object], finish: str | None = None) -> Frame:
        shown = {
            "index": choice,
            "delta": delta,
            "logprobs": _logprobs(self._noted[choice] or None),
            "finish_reason": finish,
        }
        self._noted[choice].clear()
        return Frame(b"", b"%b%b]%b" % (self._chunk_head, json_bytes(shown), self._null_usage))

    def _message(self, index: int, choice: ShownChoice) -> dict[str, object]:
        has_content = choice.text or self._header.tool_parser is None
        message: dict[str, object] = {
            "role": "assistant",
            "content": choice.text if has_content else None,
            "refusal": None,
        }
        if choice.thinking and self._header.reasoning_shown:
            message["reasoning_content"] = choice.thinking
        if choice.calls and self._in_functions:
            call = choice.calls[0]  # its grammar allows no second one
            message |= _function_call(call.name, call.arguments)
        elif choice.calls:
            message["tool_calls"] = [
                {
                    "id": item_id(_TOOL_PREFIX, self._reply_id, index, call.index),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in choice.calls
            ]
        return message

    def _finish_reason(self, choice: ShownChoice) -> str:
        if choice.awaits_tools:
            return "function_call" if self._in_functions else "tool_calls"
        return FINISH_REASONS[choice.stop.reason]

    def _envelope(self, kind: str) -> dict[str, object]:
        return {
            "id": self._reply_id,
            "object": kind,
            "created": self._header.created_ms // 1_000,
            "model": self._header.model_shown,
            "service_tier": _SERVICE_TIER,
            "system_fingerprint": None,
        }


def usage(header: ReplyHeader, counts: TokenCounts) -> dict[str, object]:
    """Return the counts as both completion APIs show them; cached tokens are among the prompt's."""
    return {
        "prompt_tokens": header.prompt_tokens,
        "completion_tokens": counts.output,
        "total_tokens": header.prompt_tokens + counts.output,
        "prompt_tokens_details": {"cached_tokens": counts.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": counts.thinking},
    }


def _function_call(name: str, arguments: str) -> dict[str, object]:
    return {"function_call": {"name": name, "arguments": arguments}}


def _logprobs(entries: Sequence[ShownLogprob] | None) -> dict[str, object] | None:
    if entries is None:
        return None
    return {"content": [chat_logprob(entry) for entry in entries], "refusal": None}
