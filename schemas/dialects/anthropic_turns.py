"""Turns and content blocks of Anthropic's Messages API, read as text.

Owns the rules of `system` and `messages`: blocks of a turn are joined by a line break, consecutive
turns of one role are merged with a blank line between them, a last assistant turn is a prefill.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from schemas.dialects import fields
from schemas.dialects.canonical import CanonicalMessage, InvalidRequest, Role

_ROLES: Final[Mapping[str, Role]] = {"user": "user", "assistant": "assistant", "system": "system"}
_TEXT_FIELDS = ("type", "text", "citations", "cache_control")
_BLOCK_TYPES_UNBUILT = frozenset(
    {
        *("image", "document", "search_result", "thinking", "redacted_thinking"),
        *("tool_use", "tool_result", "server_tool_use", "web_search_tool_result"),
        *("web_fetch_tool_result", "code_execution_tool_result", "container_upload"),
        *("bash_code_execution_tool_result", "text_editor_code_execution_tool_result"),
        *("tool_search_tool_result", "mcp_tool_use", "mcp_tool_result", "compaction", "fallback"),
    }
)
_CACHE_BREAKPOINTS_MAX = 4
_BLOCK_SEPARATOR = "\n"
_TURN_SEPARATOR = "\n\n"


def read_turns(request: Mapping[str, object]) -> tuple[CanonicalMessage, ...]:
    """Return system prompt and turns as text; raises InvalidRequest."""
    breakpoints = int(_is_breakpoint(request.get("cache_control"), "cache_control"))
    turns: list[CanonicalMessage] = []
    if request.get("system") is not None:
        text, marked = _text(request["system"], "system")
        breakpoints += marked
        if text:
            turns.append(CanonicalMessage(role="system", text=text))
    entries = fields.as_messages(fields.required(request, "messages"))
    for index, entry in enumerate(entries):
        turn, marked = _turn(entry, f"messages.{index}", is_last=index == len(entries) - 1)
        breakpoints += marked
        if turn is not None:
            turns.append(turn)
    if not turns:
        raise InvalidRequest("messages", "at least one message is required")
    if breakpoints > _CACHE_BREAKPOINTS_MAX:
        raise InvalidRequest(
            "",
            f"A maximum of {_CACHE_BREAKPOINTS_MAX} blocks with cache_control may be provided. "
            f"Found {breakpoints}.",
        )
    return tuple(_merged(turns))


def _turn(entry: object, path: str, *, is_last: bool) -> tuple[CanonicalMessage | None, int]:
    message = fields.as_object(entry, path)
    role = fields.as_choice(fields.required(message, "role", path), f"{path}.role", _ROLES)
    fields.refuse_extra(message, ("role", "content"), path)
    content_path = f"{path}.content"
    text, marked = _text(fields.required(message, "content", path), content_path)
    is_prefill = is_last and role == "assistant"
    if not text:
        if is_prefill:
            return None, marked  # an empty prefill asks for an ordinary answer
        raise InvalidRequest(content_path, f"{role} messages must have non-empty content")
    if is_prefill and text[-1].isspace():
        raise InvalidRequest(
            content_path, "final assistant content cannot end with trailing whitespace"
        )
    return CanonicalMessage(role=_ROLES[role], text=text, continued=is_prefill), marked


def _text(content: object, path: str) -> tuple[str, int]:
    """Return the text of a string or of text blocks, and how many of them are cache breakpoints."""
    if isinstance(content, str):
        return fields.as_text(content, path), 0
    texts, breakpoints = [], 0
    for index, entry in enumerate(fields.as_list(content, path)):
        block_path = f"{path}.{index}"
        block = fields.as_object(entry, block_path)
        texts.append(_block_text(block, block_path))
        breakpoints += _is_breakpoint(block.get("cache_control"), f"{block_path}.cache_control")
    return _BLOCK_SEPARATOR.join(texts), breakpoints


def _block_text(block: Mapping[str, object], path: str) -> str:
    kind = fields.required(block, "type", path)
    if isinstance(kind, str) and kind in _BLOCK_TYPES_UNBUILT:
        raise InvalidRequest(path, f"content blocks of type '{kind}' are not supported yet")
    fields.as_choice(kind, f"{path}.type", ("text",))
    fields.refuse_extra(block, _TEXT_FIELDS, path)
    fields.refuse_unbuilt(block, {"citations": fields.empty}, path)
    text = fields.as_text(fields.required(block, "text", path), f"{path}.text")
    if not text:
        raise InvalidRequest(path, "text content blocks must be non-empty")
    return text


def _is_breakpoint(value: object, path: str) -> bool:
    if value is None:
        return False
    control = fields.as_object(value, path)
    fields.refuse_extra(control, ("type", "ttl"), path)
    fields.as_choice(fields.required(control, "type", path), f"{path}.type", ("ephemeral",))
    if control.get("ttl") is not None:
        fields.as_choice(control["ttl"], f"{path}.ttl", ("5m", "1h"))
    return True


def _merged(turns: Iterable[CanonicalMessage]) -> list[CanonicalMessage]:
    """Merge consecutive turns of one role; linear in the text, however many turns there are."""
    groups: list[list[CanonicalMessage]] = []
    for turn in turns:
        if groups and groups[-1][0].role == turn.role:
            groups[-1].append(turn)
        else:
            groups.append([turn])
    return [
        replace(group[-1], text=_TURN_SEPARATOR.join(turn.text for turn in group))
        for group in groups
    ]
