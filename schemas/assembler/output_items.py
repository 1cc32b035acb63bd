"""Output items of OpenAI's Responses API: what each tells while it comes, and what it is at last.

Owns the events between an item's start and its end, as objects without their number. Each class is
one item under way; called by `responses.py`.
"""

from collections.abc import Sequence

from schemas.assembler.item_ids import item_id
from schemas.assembler.logprobs import ShownLogprob, chat_logprob

__all__ = ["FunctionCall", "Message", "OutputItem", "Reasoning"]

Event = dict[str, object]


class _Item:
    """Mutable state of one item: its place, its status, its text so far."""

    prefix = ""

    def __init__(self, reply_id: str, output_index: int) -> None:
        self.id = item_id(self.prefix, reply_id, 0, output_index)
        self._output_index = output_index
        self._status = "in_progress"
        self._pieces: list[str] = []

    def begin(self) -> list[Event]:
        """Return the events before the item's first delta."""
        item = {"output_index": self._output_index, "item": self.shown()}
        return [{"type": "response.output_item.added"} | item]

    def end(self, status: str) -> list[Event]:
        """Return the events after its last delta."""
        self._status = status
        item = {"output_index": self._output_index, "item": self.shown()}
        return [{"type": "response.output_item.done"} | item]

    def shown(self) -> dict[str, object]:
        """Return the item as it is now."""
        raise NotImplementedError

    def _event(self, kind: str, **members: object) -> Event:
        place = {"item_id": self.id, "output_index": self._output_index}
        return {"type": f"response.{kind}"} | place | members


class Message(_Item):
    """The answer, or a piece of it between other items."""

    prefix = "msg_"

    def __init__(self, reply_id: str, output_index: int) -> None:
        super().__init__(reply_id, output_index)
        self._logprobs: list[dict[str, object]] = []

    def begin(self) -> list[Event]:
        """Return the item without content, then its one part."""
        part = _text_part("", [])
        return [
            *super().begin(),
            self._event("content_part.added", content_index=0, part=part),
        ]

    def text(self, text: str, logprobs: Sequence[ShownLogprob]) -> Event:
        """Return a delta."""
        shown = [chat_logprob(entry) for entry in logprobs]
        self._pieces.append(text)
        self._logprobs.extend(shown)
        return self._event("output_text.delta", content_index=0, delta=text, logprobs=shown)

    def end(self, status: str) -> list[Event]:
        """Return the whole text, the whole part, the whole item."""
        text = "".join(self._pieces)
        part = _text_part(text, self._logprobs)
        return [
            self._event("output_text.done", content_index=0, text=text, logprobs=self._logprobs),
            self._event("content_part.done", content_index=0, part=part),
            *super().end(status),
        ]

    def shown(self) -> dict[str, object]:
        """Return the item; it has content once it is over."""
        is_over = self._status != "in_progress"
        part = _text_part("".join(self._pieces), self._logprobs)
        return {
            "id": self.id,
            "type": "message",
            "status": self._status,
            "role": "assistant",
            "content": [part] if is_over else [],
        }


class Reasoning(_Item):
    """What the model thought."""

    prefix = "rs_"

    def __init__(self, reply_id: str, output_index: int, *, shown: bool) -> None:
        """Take whether the client is to see the text."""
        super().__init__(reply_id, output_index)
        self._is_shown = shown

    def begin(self) -> list[Event]:
        """Return the item without content, then its one part where there is to be one."""
        if not self._is_shown:
            return super().begin()
        part = {"type": "reasoning_text", "text": ""}
        return [*super().begin(), self._event("content_part.added", content_index=0, part=part)]

    def think(self, text: str) -> Event | None:
        """Return a delta, None where the client is not to see it."""
        if not self._is_shown:
            return None
        self._pieces.append(text)
        return self._event("reasoning_text.delta", content_index=0, delta=text)

    def end(self, status: str) -> list[Event]:
        """Return the whole text, the whole part, the whole item."""
        if not self._is_shown:
            return super().end(status)
        text = "".join(self._pieces)
        part = {"type": "reasoning_text", "text": text}
        return [
            self._event("reasoning_text.done", content_index=0, text=text),
            self._event("content_part.done", content_index=0, part=part),
            *super().end(status),
        ]

    def shown(self) -> dict[str, object]:
        """Return the item; it has content once it is over."""
        text = "".join(self._pieces)
        return {
            "id": self.id,
            "type": "reasoning",
            "status": self._status,
            "summary": [],
            "content": [{"type": "reasoning_text", "text": text}] if text else [],
        }


class FunctionCall(_Item):
    """A call of a tool."""

    prefix = "fc_"

    def __init__(self, reply_id: str, output_index: int, name: str, call_index: int) -> None:
        super().__init__(reply_id, output_index)
        self._name = name
        self._call_id = item_id("call_", reply_id, 0, call_index)

    def arguments(self, text: str) -> Event:
        """Return a delta."""
        self._pieces.append(text)
        return self._event("function_call_arguments.delta", delta=text)

    def end(self, status: str) -> list[Event]:
        """Return the whole arguments, the whole item."""
        arguments = "".join(self._pieces)
        return [
            self._event("function_call_arguments.done", name=self._name, arguments=arguments),
            *super().end(status),
        ]

    def shown(self) -> dict[str, object]:
        """Return the item with its arguments so far."""
        return {
            "id": self.id,
            "type": "function_call",
            "status": self._status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": "".join(self._pieces),
        }


OutputItem = Message | Reasoning | FunctionCall


def _text_part(text: str, logprobs: Sequence[dict[str, object]]) -> dict[str, object]:
    return {
        "type": "output_text",
        "text": text,
        "annotations": [],
        "logprobs": list(logprobs),
    }
