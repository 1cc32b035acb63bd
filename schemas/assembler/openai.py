"""A reply as OpenAI's Chat Completions API shows it.

Source: https://platform.openai.com/docs/api-reference/chat; openai-python 3.57.0's accumulator.
"""

from collections.abc import Sequence
from typing import Final

from schemas.assembler.sse import COMMENT, Frame, json_bytes
from schemas.dialects.openai import error_body
from schemas.replies import Stop, StopReason
from schemas.requests import ReplyHeader

_FINISH_REASONS: Final = {
    StopReason.END: "stop",
    StopReason.LENGTH: "length",
    StopReason.STOP_SEQUENCE: "stop",
    StopReason.REFUSAL: "content_filter",
}
_SERVICE_TIER: Final = "default"
_DONE: Final = Frame(b"", b"[DONE]")


class OpenAiReply:
    """One completion of one or more choices; everything but the text is rendered once."""

    def __init__(self, header: ReplyHeader, reply_id: str) -> None:
        self._header = header
        self._reply_id = reply_id
        head = json_bytes(self._envelope("chat.completion.chunk"))
        # Clients that did not ask for usage must not meet the member at all.
        null_usage = b',"usage":null}' if header.include_usage else b"}"
        self._chunk_head = head[:-1] + b',"choices":['
        self._tail = b',"logprobs":null,"finish_reason":null}]' + null_usage
        self._finish_tail = b"}]" + null_usage
        self._text_heads = [
            self._chunk_head + b'{"index":%d,"delta":{"content":' % choice
            for choice in range(header.choices)
        ]
        self._text_tail = b"}" + self._tail

    def opening(self) -> list[Frame]:
        """Return one chunk with the role for each choice, in order."""
        return [
            Frame(
                b"",
                b'%b{"index":%d,"delta":{"role":"assistant","content":"","refusal":null}%b'
                % (self._chunk_head, choice, self._tail),
            )
            for choice in range(self._header.choices)
        ]

    def text(self, choice: int, text: str) -> list[Frame]:
        """Return one chunk."""
        return [Frame(b"", self._text_heads[choice] + json_bytes(text) + self._text_tail)]

    def finish(self, stops: Sequence[Stop], output_tokens: int) -> list[Frame]:
        """Return a chunk with the reason for each choice, usage where asked for, and `[DONE]`."""
        frames = [
            Frame(
                b"",
                b'%b{"index":%d,"delta":{},"logprobs":null,"finish_reason":"%b"%b'
                % (
                    self._chunk_head,
                    choice,
                    _FINISH_REASONS[stop.reason].encode(),
                    self._finish_tail,
                ),
            )
            for choice, stop in enumerate(stops)
        ]
        if self._header.include_usage:
            usage = json_bytes(self._usage(output_tokens))
            frames.append(Frame(b"", b'%b],"usage":%b}' % (self._chunk_head, usage)))
        return [*frames, _DONE]

    def body(
        self, texts: Sequence[str], stops: Sequence[Stop], output_tokens: int
    ) -> dict[str, object]:
        """Return the completion; content is the empty string where no text came."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": _FINISH_REASONS[stop.reason],
            }
            for index, (text, stop) in enumerate(zip(texts, stops, strict=True))
        ]
        return self._envelope("chat.completion") | {
            "choices": choices,
            "usage": self._usage(output_tokens),
        }

    def error(self, status: int, message: str, request_id: str) -> Frame:
        """Return a chunk that the SDK raises as an error."""
        return Frame(b"", json_bytes(error_body(status, message, request_id)))

    def keepalive(self) -> bytes:
        """Return a comment: the SDK takes every event for JSON."""
        return COMMENT

    def _envelope(self, kind: str) -> dict[str, object]:
        return {
            "id": self._reply_id,
            "object": kind,
            "created": self._header.created_ms // 1_000,
            "model": self._header.model_shown,
            "service_tier": _SERVICE_TIER,
            "system_fingerprint": None,
        }

    def _usage(self, output_tokens: int) -> dict[str, object]:
        return {
            "prompt_tokens": self._header.prompt_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": self._header.prompt_tokens + output_tokens,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        }
