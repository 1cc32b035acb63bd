"""Input items of OpenAI's Responses API, read into turns.

Owns what each type of item may hold. Items of one assistant turn (message, calls) are joined;
reasoning is dropped, since it cannot be told whether it is ours; what needs state that earlier
responses left on a server is refused.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from schemas.dialects import fields
from schemas.dialects.canonical import CanonicalMessage, InvalidRequest, Role, ToolCall
from schemas.dialects.json_texts import arguments_of
from schemas.dialects.openai_errors import refuse_unknown
from schemas.limits import HTTP_MESSAGES_MAX

_ROLES: Final[Mapping[str, Role]] = {
    "developer": "system",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
}
_TYPES = ("message", "function_call", "function_call_output", "reasoning")
_MESSAGE_FIELDS = ("type", "role", "content", "id", "status", "phase", "name")
_CALL_FIELDS = (
    *("type", "id", "call_id", "name", "arguments", "status", "caller", "namespace"),
    *("parsed_arguments", "async"),
)
_OUTPUT_FIELDS = (*("type", "id", "call_id", "output", "status", "caller", "name", "namespace"),)
_TEXT_PARTS: Final[Mapping[str, str]] = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
}
_PART_FIELDS = (
    *("type", "text", "refusal", "annotations", "logprobs", "parsed", "prompt_cache_breakpoint"),
)
_PARTS_UNSUPPORTED = ("input_image", "input_file", "input_audio", "output_audio")
_PART_SEPARATOR = "\n"
_TURN_SEPARATOR = "\n\n"


def read_input(value: object) -> tuple[CanonicalMessage, ...]:
    """Return the conversation of `input`: a text or items. Raises InvalidRequest."""
    if isinstance(value, str):
        return (CanonicalMessage(role="user", text=fields.as_text(value, "input")),)
    items = fields.as_list(value, "input")
    _check_parts(items)
    turns: list[CanonicalMessage] = []
    calls: dict[str, str] = {}
    open_calls: dict[str, str] = {}
    for index, entry in enumerate(items):
        path = f"input.{index}"
        turn = _item(fields.as_object(entry, path), path)
        if turn is None:
            continue
        for call in turn.tool_calls:
            if call.id in calls:
                raise InvalidRequest(f"{path}.call_id", f"the id {call.id} is given twice")
            calls[call.id] = call.name
            open_calls[call.id] = path
        if turn.role == "tool":
            call_id = turn.tool_call_id or ""
            if open_calls.pop(call_id, None) is None:
                raise InvalidRequest(f"{path}.call_id", f"no open function_call {call_id}")
            turn = replace(turn, tool_name=calls[call_id])
        turns.append(turn)
    for call_id, path in open_calls.items():
        raise InvalidRequest(path, f"no function_call_output for the call {call_id}")
    if not turns:
        raise InvalidRequest("input", "at least one message is required")
    return tuple(_joined(turns))


def _item(item: Mapping[str, object], path: str) -> CanonicalMessage | None:
    kind = item.get("type", "message")
    if isinstance(kind, str) and kind not in _TYPES:
        raise InvalidRequest(path, f"items of type '{kind}' are not supported")
    kind = fields.as_choice(kind, f"{path}.type", _TYPES)
    if kind == "reasoning":
        return None
    if kind == "function_call":
        return _call(item, path)
    if kind == "function_call_output":
        refuse_unknown(item, _OUTPUT_FIELDS, path)
        output = _text(fields.required(item, "output", path), f"{path}.output")
        return CanonicalMessage(
            role="tool", text=output, tool_call_id=_label(item, "call_id", path)
        )
    refuse_unknown(item, _MESSAGE_FIELDS, path)
    role = fields.as_choice(fields.required(item, "role", path), f"{path}.role", _ROLES)
    content = fields.required(item, "content", path)
    return CanonicalMessage(role=_ROLES[role], text=_text(content, f"{path}.content"))


def _call(item: Mapping[str, object], path: str) -> CanonicalMessage:
    refuse_unknown(item, _CALL_FIELDS, path)
    arguments = fields.as_text(fields.required(item, "arguments", path), f"{path}.arguments")
    call = ToolCall(
        id=_label(item, "call_id", path),
        name=_label(item, "name", path),
        arguments=arguments_of(arguments, f"{path}.arguments"),
    )
    return CanonicalMessage(role="assistant", text="", tool_calls=(call,))


def _label(item: Mapping[str, object], key: str, path: str) -> str:
    value = fields.required(item, key, path)
    text = fields.as_text(value, f"{path}.{key}", fields.LABEL_CHARS_MAX)
    if not text:
        raise InvalidRequest(f"{path}.{key}", "String should have at least 1 character")
    return text


def _text(content: object, path: str) -> str:
    if not isinstance(content, list):
        return fields.as_text(content, path)
    texts = []
    for index, entry in enumerate(content):
        part_path = f"{path}.{index}"
        part = fields.as_object(entry, part_path)
        kind = fields.required(part, "type", part_path)
        if isinstance(kind, str) and kind in _PARTS_UNSUPPORTED:
            raise InvalidRequest(part_path, f"content of type '{kind}' is not supported")
        key = _TEXT_PARTS[fields.as_choice(kind, f"{part_path}.type", _TEXT_PARTS)]
        refuse_unknown(part, _PART_FIELDS, part_path)
        texts.append(fields.as_text(fields.required(part, key, part_path), f"{part_path}.{key}"))
    return _PART_SEPARATOR.join(texts)


def _check_parts(items: Iterable[object]) -> None:
    """Refuse too many parts before any is read."""
    parts = 0
    for item in items:
        if isinstance(item, dict):
            for content in (item.get("content"), item.get("output")):
                parts += len(content) if isinstance(content, list) else 0
    if parts > HTTP_MESSAGES_MAX:
        raise InvalidRequest("input", f"at most {HTTP_MESSAGES_MAX} content parts are allowed")


def _joined(turns: Iterable[CanonicalMessage]) -> list[CanonicalMessage]:
    """Join consecutive assistant items to one turn; linear in the text."""
    groups: list[list[CanonicalMessage]] = []
    for turn in turns:
        if groups and groups[-1][0].role == turn.role == "assistant":
            groups[-1].append(turn)
        else:
            groups.append([turn])
    return [
        group[0]
        if len(group) == 1
        else CanonicalMessage(
            role="assistant",
            text=_TURN_SEPARATOR.join(turn.text for turn in group if turn.text),
            tool_calls=tuple(call for turn in group for call in turn.tool_calls),
        )
        for group in groups
    ]
