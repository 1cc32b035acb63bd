"""A reply as OpenAI's Responses API shows it: output items, each told of from its start to its end.

Source: https://platform.openai.com/docs/api-reference/responses-streaming; openai-python 3.57.0's
`lib/streaming/responses`.
"""

from collections.abc import Sequence
from typing import Final

from schemas.assembler.content import ShownChoice, TokenCounts
from schemas.assembler.logprobs import ShownLogprob
from schemas.assembler.output_items import FunctionCall, Message, OutputItem, Reasoning
from schemas.assembler.parts import (
    Part,
    Text,
    Thinking,
    ThinkingEnd,
    ToolArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from schemas.assembler.responses_object import response_object
from schemas.assembler.sse import COMMENT, Frame, json_bytes
from schemas.dialects.openai import error_body
from schemas.replies import Stop, StopReason
from schemas.requests import ReplyHeader

__all__ = ["ResponsesReply"]

_INCOMPLETE: Final = {
    StopReason.LENGTH: "max_output_tokens",
    StopReason.REFUSAL: "content_filter",
}


class ResponsesReply:
    """One response: items one after the other, each opened by what it shows first."""

    sums_events = True

    def __init__(self, header: ReplyHeader, reply_id: str) -> None:
        assert header.choices == 1, "a response has one choice"
        self._header = header
        self._reply_id = reply_id
        self._sequence = 0
        """Of the next event."""
        self._open: OutputItem | None = None
        self._items: list[OutputItem] = []
        """Those that are over."""
        self._noted: list[ShownLogprob] = []

    def opening(self, cached_tokens: int) -> list[Frame]:
        """Return response.created and response.in_progress."""
        response = self._response("in_progress", None, None)
        return [
            self._frame("response.created", {"response": response}),
            self._frame("response.in_progress", {"response": response}),
        ]

    def text(self, choice: int, text: str) -> list[Frame]:
        """Return a delta, after the start of its message where it is the first."""
        frames = []
        if not isinstance(self._open, Message):
            frames = self._make_room()
            frames += self._begin(Message(self._reply_id, len(self._items)))
        assert isinstance(self._open, Message)
        frames.append(self._framed(self._open.text(text, self._noted)))
        self._noted.clear()
        return frames

    def part(self, choice: int, part: Part) -> list[Frame]:
        """Return the events of one part."""
        match part:
            case Text():
                return self.text(choice, part.text)
            case Thinking():
                return self._think(part.text)
            case ToolCallBegin():
                frames = self._make_room()
                call = FunctionCall(self._reply_id, len(self._items), part.name, part.index)
                return frames + self._begin(call)
            case ToolArguments():
                assert isinstance(self._open, FunctionCall)
                return [self._framed(self._open.arguments(part.text))]
            case ThinkingEnd():
                return self._end("completed")
            case ToolCallEnd():
                return self._end("completed" if part.complete else "incomplete")

    def note(self, choice: int, logprobs: Sequence[ShownLogprob]) -> None:
        """Take numbers for the next text; those of other items are not shown."""
        if self._header.logprobs is not None:
            self._noted.extend(logprobs)

    def finish(self, choices: Sequence[ShownChoice], counts: TokenCounts) -> list[Frame]:
        """Return the open item's end and the response as it became."""
        (choice,) = choices
        status = _status(choice.stop)
        frames = [] if self._open is None else self._end(status)
        response = self._response(status, choice.stop, counts)
        return [*frames, self._frame(f"response.{status}", {"response": response})]

    def body(self, choices: Sequence[ShownChoice], counts: TokenCounts) -> dict[str, object]:
        """Return the response; its items are those that the stream told of."""
        (choice,) = choices
        return self._response(_status(choice.stop), choice.stop, counts)

    def error(self, status: int, message: str, request_id: str) -> Frame:
        """Return an error event, which the SDK raises for its member `error`."""
        body = error_body(status, message, request_id)
        error = body["error"]
        assert isinstance(error, dict)
        members = {
            "code": error["code"],
            "message": error["message"],
            "param": error["param"],
            "error": error,
        }
        return self._frame("error", members)

    def keepalive(self) -> bytes:
        """Return a comment."""
        return COMMENT

    def _think(self, text: str) -> list[Frame]:
        frames = []
        if not isinstance(self._open, Reasoning):
            shown = self._header.reasoning_shown
            frames = self._make_room()
            frames += self._begin(Reasoning(self._reply_id, len(self._items), shown=shown))
        assert isinstance(self._open, Reasoning)
        delta = self._open.think(text)
        return frames if delta is None else [*frames, self._framed(delta)]

    def _begin(self, item: OutputItem) -> list[Frame]:
        self._open = item
        if not isinstance(item, Message):
            self._noted.clear()
        return [self._framed(event) for event in item.begin()]

    def _make_room(self) -> list[Frame]:
        """Return the end of the item that is open, where one is."""
        return self._end("completed") if self._open is not None else []

    def _end(self, status: str) -> list[Frame]:
        assert self._open is not None
        item, self._open = self._open, None
        self._items.append(item)
        self._noted.clear()
        return [self._framed(event) for event in item.end(status)]

    def _response(
        self, status: str, stop: Stop | None, counts: TokenCounts | None
    ) -> dict[str, object]:
        return response_object(
            self._header,
            self._reply_id,
            status=status,
            incomplete=_INCOMPLETE.get(stop.reason) if stop is not None else None,
            output=[item.shown() for item in self._items],
            counts=counts,
        )

    def _framed(self, event: dict[str, object]) -> Frame:
        name = event.pop("type")
        assert isinstance(name, str)
        return self._frame(name, event)

    def _frame(self, name: str, members: dict[str, object]) -> Frame:
        numbered = {"type": name, "sequence_number": self._sequence} | members
        self._sequence += 1
        return Frame(b"event: %b\n" % name.encode(), json_bytes(numbered))


def _status(stop: Stop) -> str:
    return "incomplete" if stop.reason in _INCOMPLETE else "completed"
