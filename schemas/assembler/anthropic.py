"""A reply as Anthropic's Messages API shows it.

Source: https://docs.anthropic.com/en/api/messages-streaming; anthropic-python 2.14.0's accumulator.
"""

from collections.abc import Sequence
from typing import Final

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
_DELTA_NAME: Final = b"event: content_block_delta\n"
_DELTA_HEAD: Final = b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":'
_BLOCK_START: Final = Frame(
    b"event: content_block_start\n",
    b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}',
)
_BLOCK_STOP: Final = Frame(
    b"event: content_block_stop\n", b'{"type":"content_block_stop","index":0}'
)
_MESSAGE_STOP: Final = Frame(b"event: message_stop\n", b'{"type":"message_stop"}')
_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'


class AnthropicReply:
    """One message: at most one text block, opened by its first text, never an empty one."""

    def __init__(self, header: ReplyHeader, reply_id: str) -> None:
        assert header.choices == 1, "a message has one choice"
        self._header = header
        self._reply_id = reply_id
        self._is_block_open = False

    def opening(self) -> list[Frame]:
        """Return message_start."""
        # The hosted API counts one output token here; message_delta overwrites it.
        message = self._message([], None, output_tokens=1)
        return [_frame("message_start", {"message": message})]

    def text(self, choice: int, text: str) -> list[Frame]:
        """Return a text delta, after the start of its block where it is the first."""
        delta = Frame(_DELTA_NAME, b"%b%b}}" % (_DELTA_HEAD, json_bytes(text)))
        if self._is_block_open:
            return [delta]
        self._is_block_open = True
        return [_BLOCK_START, delta]

    def finish(self, stops: Sequence[Stop], output_tokens: int) -> list[Frame]:
        """Return the block's end, message_delta with the reason and all counts, message_stop."""
        delta: dict[str, object] = {
            "stop_reason": self._stop_reason(stops[0]),
            "stop_sequence": _stop_sequence(stops[0]),
        }
        if stops[0].reason is StopReason.REFUSAL:
            delta["stop_details"] = _stop_details(stops[0])
        usage = {
            "input_tokens": self._header.prompt_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": output_tokens,
        }
        ends = [_frame("message_delta", {"delta": delta, "usage": usage}), _MESSAGE_STOP]
        if not self._is_block_open:
            return ends
        self._is_block_open = False
        return [_BLOCK_STOP, *ends]

    def body(
        self, texts: Sequence[str], stops: Sequence[Stop], output_tokens: int
    ) -> dict[str, object]:
        """Return the message; its content is empty where no text came."""
        content: list[dict[str, object]] = [
            {"type": "text", "text": text, "citations": None} for text in texts if text
        ]
        return self._message(content, stops[0], output_tokens)

    def error(self, status: int, message: str, request_id: str) -> Frame:
        """Return an error event."""
        body = error_body(status, message, request_id)
        return Frame(b"event: error\n", json_bytes(body))

    def keepalive(self) -> bytes:
        """Return a ping."""
        return _PING

    def _message(
        self, content: list[dict[str, object]], stop: Stop | None, output_tokens: int
    ) -> dict[str, object]:
        return {
            "id": self._reply_id,
            "type": "message",
            "role": "assistant",
            "model": self._header.model_shown,
            "content": content,
            "stop_reason": None if stop is None else self._stop_reason(stop),
            "stop_sequence": None if stop is None else _stop_sequence(stop),
            "stop_details": None if stop is None else _stop_details(stop),
            "container": None,
            "usage": {
                "input_tokens": self._header.prompt_tokens,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "cache_creation": {
                    "ephemeral_5m_input_tokens": 0,
                    "ephemeral_1h_input_tokens": 0,
                },
                "output_tokens": output_tokens,
                "output_tokens_details": {"thinking_tokens": 0},
                "server_tool_use": None,
                "service_tier": "standard",
                "speed": "standard",
                "inference_geo": None,
            },
        }

    def _stop_reason(self, stop: Stop) -> str:
        if stop.reason is StopReason.LENGTH and self._header.clipped:
            return "model_context_window_exceeded"
        return _STOP_REASONS[stop.reason]


def _frame(name: str, members: dict[str, object]) -> Frame:
    return Frame(b"event: %b\n" % name.encode(), json_bytes({"type": name} | members))


def _stop_sequence(stop: Stop) -> str | None:
    return stop.stop_sequence if stop.reason is StopReason.STOP_SEQUENCE else None


def _stop_details(stop: Stop) -> dict[str, object] | None:
    if stop.reason is not StopReason.REFUSAL:
        return None
    return {"type": "refusal", "category": None, "explanation": None}
