"""Turns of Anthropic's Messages API: where blocks may stand, and the conversation they make.

Owns the rules of `system` and `messages`: texts of a turn are joined by a line break, consecutive
turns of one role are merged with a blank line between them, every tool_use is answered at the
beginning of the next user turn, a last assistant turn is a prefill.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from schemas.dialects import fields
from schemas.dialects.anthropic_blocks import BlockReader, Part, Thought, ToolResult
from schemas.dialects.canonical import CanonicalMessage, InvalidRequest, Role, ToolCall

_ROLES: Final[Mapping[str, Role]] = {"user": "user", "assistant": "assistant", "system": "system"}
_PART_SEPARATOR = "\n"
_TURN_SEPARATOR = "\n\n"
_BILLING_NOTE = "x-anthropic-billing-header"
"""Begins a system text by which some agents tell their host's billing of themselves. It differs in
each request and would keep all of them from sharing a cached prefix."""


def read_turns(request: Mapping[str, object], reader: BlockReader) -> tuple[CanonicalMessage, ...]:
    """Return system prompt and conversation; raises InvalidRequest."""
    conversation = _Conversation()
    if request.get("system") is not None:
        conversation.system(reader.parts(request["system"], "system", "system"))
    entries = fields.as_messages(fields.required(request, "messages"))
    for index, entry in enumerate(entries):
        path = f"messages.{index}"
        message = fields.as_object(entry, path)
        role = _ROLES[
            fields.as_choice(fields.required(message, "role", path), f"{path}.role", _ROLES)
        ]
        fields.refuse_extra(message, ("role", "content"), path)
        content = fields.required(message, "content", path)
        parts = reader.parts(content, f"{path}.content", role)
        if role == "assistant":
            conversation.assistant(parts, path, is_last=index == len(entries) - 1)
        elif not parts:
            raise InvalidRequest(f"{path}.content", f"{role} messages must have non-empty content")
        elif role == "user":
            conversation.user(parts)
        else:
            conversation.system(parts)
    return conversation.turns()


class _Conversation:
    """What was read so far, and the calls that wait for their results."""

    def __init__(self) -> None:
        self._turns: list[CanonicalMessage] = []
        self._held: list[CanonicalMessage] = []
        """System turns between calls and their results; they are shown after the results."""
        self._calls: dict[str, str] = {}
        """Every call's tool name by id."""
        self._pending: dict[str, None] = {}
        """Ids of calls without a result, in order."""
        self._answered: set[str] = set()
        """Ids of calls of the newest assistant turn that have their result."""
        self._calls_path = ""

    def system(self, parts: Iterable[Part]) -> None:
        """Take a system turn."""
        texts = (part for part in parts if isinstance(part, str))
        text = _PART_SEPARATOR.join(part for part in texts if not part.startswith(_BILLING_NOTE))
        if text:
            (self._held if self._pending else self._turns).append(
                CanonicalMessage(role="system", text=text)
            )

    def user(self, parts: Iterable[Part]) -> None:
        """Take a user turn: results of calls first, then text. Raises InvalidRequest."""
        texts = []
        for part in parts:
            if isinstance(part, ToolResult):
                self._turns.append(self._result(part))
                if not self._pending:
                    self._turns += self._held
                    self._held = []
            elif isinstance(part, str):
                self._require_results()
                texts.append(part)
        if texts:
            self._turns.append(CanonicalMessage(role="user", text=_PART_SEPARATOR.join(texts)))

    def assistant(self, parts: list[Part], path: str, *, is_last: bool) -> None:
        """Take an assistant turn; the last one is a prefill. Raises InvalidRequest."""
        if self._answered:
            self._require_results()
        self._answered = set()
        calls = tuple(part for part in parts if isinstance(part, ToolCall))
        for call in calls:
            if call.id in self._calls:
                raise InvalidRequest(path, f"tool_use ids must be unique: {call.id}")
            self._calls[call.id] = call.name
            self._pending[call.id] = None
            self._calls_path = path
        text = _PART_SEPARATOR.join(part for part in parts if isinstance(part, str))
        if is_last and text and text[-1].isspace() and not calls:
            raise InvalidRequest(
                f"{path}.content", "final assistant content cannot end with trailing whitespace"
            )
        if is_last and not text and not calls:
            return  # an empty prefill asks for an ordinary answer
        thoughts = [part.text for part in parts if isinstance(part, Thought)]
        self._turns.append(
            CanonicalMessage(
                role="assistant",
                text=text,
                thinking=_TURN_SEPARATOR.join(thoughts) or None,
                tool_calls=calls,
                continued=is_last,
            )
        )

    def turns(self) -> tuple[CanonicalMessage, ...]:
        """Return the conversation. Raises InvalidRequest where a call is unanswered."""
        self._require_results()
        if not self._turns:
            raise InvalidRequest("messages", "at least one message is required")
        return tuple(_merged(self._turns))

    def _result(self, result: ToolResult) -> CanonicalMessage:
        call_id = result.tool_use_id
        if call_id in self._answered:
            raise InvalidRequest(
                result.path,
                f"each tool_use must have a single result; found another for: {call_id}",
            )
        if call_id not in self._pending:
            raise InvalidRequest(
                result.path,
                f"unexpected tool_use_id found in tool_result blocks: {call_id}. Each tool_result "
                "block must have a corresponding tool_use block in the previous message.",
            )
        del self._pending[call_id]
        self._answered.add(call_id)
        return CanonicalMessage(
            role="tool",
            text=result.text,
            tool_call_id=call_id,
            tool_name=self._calls[call_id],
            is_error=result.is_error,
        )

    def _require_results(self) -> None:
        if self._pending:
            raise InvalidRequest(
                self._calls_path,
                "tool_use ids were found without tool_result blocks immediately after: "
                + ", ".join(self._pending),
            )


def _merged(turns: Iterable[CanonicalMessage]) -> list[CanonicalMessage]:
    """Merge consecutive turns of one role; linear in the text, however many turns there are."""
    groups: list[list[CanonicalMessage]] = []
    for turn in turns:
        if groups and groups[-1][0].role == turn.role != "tool":
            groups[-1].append(turn)
        else:
            groups.append([turn])
    return [group[0] if len(group) == 1 else _joined(group) for group in groups]


def _joined(group: list[CanonicalMessage]) -> CanonicalMessage:
    thoughts = [turn.thinking for turn in group if turn.thinking]
    return replace(
        group[-1],
        text=_TURN_SEPARATOR.join(turn.text for turn in group if turn.text),
        thinking=_TURN_SEPARATOR.join(thoughts) or None,
        tool_calls=tuple(call for turn in group for call in turn.tool_calls),
    )
