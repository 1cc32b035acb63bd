"""Messages of OpenAI's Chat Completions API, read into turns.

Owns what each role may say: parts of a message are joined by a line break, an assistant's calls
are all answered by the tool messages right after it, what a reply thought is not shown again. Calls
and results in the form that tools replaced (`function_call`) are read like the others.
"""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from schemas.dialects import fields
from schemas.dialects.canonical import CanonicalMessage, InvalidRequest, Role, ToolCall
from schemas.dialects.json_texts import arguments_of
from schemas.dialects.openai_errors import refuse_unknown
from schemas.limits import HTTP_TOOLS_MAX

_ROLES: Final[Mapping[str, Role]] = {
    "developer": "system",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_FIELDS: Final[Mapping[Role, tuple[str, ...]]] = {
    "system": ("role", "content", "name"),
    "user": ("role", "content", "name"),
    "tool": ("role", "content", "name", "tool_call_id"),
    "assistant": (
        *("role", "content", "name", "tool_calls", "refusal", "function_call", "audio"),
        *("annotations", "parsed", "reasoning_content", "reasoning"),
    ),
}
_UNSUPPORTED: Final[Mapping[str, fields.Neutral]] = {
    "audio": fields.never,
}
_PART_SEPARATOR = "\n"
_FUNCTION_CALL_ID = "function_call:"


def read_messages(value: object) -> tuple[CanonicalMessage, ...]:
    """Return the conversation. Raises InvalidRequest."""
    turns: list[CanonicalMessage] = []
    pending: dict[str, str] = {}
    calls_path = ""
    for index, entry in enumerate(fields.as_messages(value)):
        path = f"messages.{index}"
        turn = _message(entry, path)
        if turn.role == "tool":
            turn = _answer(turn, pending, path)
        elif pending and not _are_answered(pending):
            break
        for call in turn.tool_calls:
            if call.id in pending:
                raise InvalidRequest(f"{path}.tool_calls", f"the id {call.id} is given twice")
            pending[call.id], calls_path = call.name, path
        turns.append(turn)
    if pending and not _are_answered(pending):
        raise InvalidRequest(
            calls_path,
            "",
            message="An assistant message with 'tool_calls' must be followed by tool messages "
            "responding to each 'tool_call_id'. The following tool_call_ids did not have response "
            f"messages: {', '.join(pending)}",
        )
    return tuple(turns)


def _are_answered(pending: dict[str, str]) -> bool:
    """Tell whether the conversation may go on; a `function_call` need not be answered."""
    if not all(call_id.startswith(_FUNCTION_CALL_ID) for call_id in pending):
        return False
    pending.clear()
    return True


def _answer(turn: CanonicalMessage, pending: dict[str, str], path: str) -> CanonicalMessage:
    if turn.tool_call_id is None:
        return _answer_function(turn, pending, path)
    name = pending.pop(turn.tool_call_id, None)
    if name is None:
        raise InvalidRequest(
            f"{path}.tool_call_id",
            "messages with role 'tool' must be a response to a preceding message with 'tool_calls'",
        )
    return CanonicalMessage(
        role="tool", text=turn.text, tool_call_id=turn.tool_call_id, tool_name=name
    )


def _answer_function(
    turn: CanonicalMessage, pending: dict[str, str], path: str
) -> CanonicalMessage:
    """Return the result of the `function_call` right before it, of which there is one at most."""
    for call_id, name in pending.items():
        if call_id.startswith(_FUNCTION_CALL_ID) and name == turn.tool_name:
            pending.clear()
            return replace(turn, tool_call_id=call_id)
    raise InvalidRequest(
        f"{path}.name",
        "messages with role 'function' must be a response to a preceding message with that "
        "'function_call'",
    )


def _message(entry: object, path: str) -> CanonicalMessage:
    message = fields.as_object(entry, path)
    given = fields.as_choice(fields.required(message, "role", path), f"{path}.role", _ROLES)
    if given == "function":
        return _function_result(message, path)
    role = _ROLES[given]
    refuse_unknown(message, _FIELDS[role], path)
    if message.get("name") is not None:
        fields.as_text(message["name"], f"{path}.name", fields.LABEL_CHARS_MAX)
    if role == "assistant":
        return _assistant(message, path)
    text = _text(fields.required(message, "content", path), f"{path}.content", ("text",))
    if role == "tool":
        return CanonicalMessage(
            role=role, text=text, tool_call_id=_label(message, "tool_call_id", path)
        )
    return CanonicalMessage(role=role, text=text)


def _assistant(message: Mapping[str, object], path: str) -> CanonicalMessage:
    fields.refuse_unbuilt(message, _UNSUPPORTED, path)
    for key in ("reasoning_content", "reasoning"):
        if message.get(key) is not None:
            fields.as_text(message[key], f"{path}.{key}")
    calls = _calls(message.get("tool_calls"), f"{path}.tool_calls")
    if message.get("function_call") is not None:
        if calls:
            raise InvalidRequest(f"{path}.function_call", "cannot be combined with tool_calls")
        calls = (_function_call(message["function_call"], f"{path}.function_call"),)
    refusal = message.get("refusal")
    if message.get("content") is None and refusal is not None:
        text = fields.as_text(refusal, f"{path}.refusal")
    elif message.get("content") is None and calls:
        text = ""
    else:
        content = fields.required(message, "content", path)
        text = _text(content, f"{path}.content", ("text", "refusal"))
    return CanonicalMessage(role="assistant", text=text, tool_calls=calls)


def _function_call(value: object, path: str) -> ToolCall:
    call = fields.as_object(value, path)
    refuse_unknown(call, ("name", "arguments"), path)
    return ToolCall(
        id=_FUNCTION_CALL_ID + path,  # unique, as clients of this form know of no ids
        name=_label(call, "name", path),
        arguments=_arguments(call, path),
    )


def _function_result(message: Mapping[str, object], path: str) -> CanonicalMessage:
    refuse_unknown(message, ("role", "content", "name"), path)
    content = fields.required(message, "content", path)
    return CanonicalMessage(
        role="tool",
        text=_text(content, f"{path}.content", ("text",)),
        tool_name=_label(message, "name", path),
    )


def _arguments(call: Mapping[str, object], path: str) -> str:
    path, value = f"{path}.arguments", fields.required(call, "arguments", path)
    return arguments_of(fields.as_text(value, path), path)


def _calls(value: object, path: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    calls = []
    for index, entry in enumerate(fields.as_list(value, path, HTTP_TOOLS_MAX)):
        call_path = f"{path}.{index}"
        call = fields.as_object(entry, call_path)
        kind = call.get("type", "function")
        if kind == "custom":
            raise InvalidRequest(call_path, "calls of type 'custom' are not supported")
        fields.as_choice(kind, f"{call_path}.type", ("function",))
        refuse_unknown(call, ("id", "type", "function", "index"), call_path)
        whole = f"{call_path}.function"
        function = fields.as_object(fields.required(call, "function", call_path), whole)
        refuse_unknown(function, ("name", "arguments", "parsed_arguments"), whole)
        calls.append(
            ToolCall(
                id=_label(call, "id", call_path),
                name=_label(function, "name", whole),
                arguments=_arguments(function, whole),
            )
        )
    return tuple(calls)


def _label(members: Mapping[str, object], key: str, path: str) -> str:
    value = fields.required(members, key, path)
    text = fields.as_text(value, f"{path}.{key}", fields.LABEL_CHARS_MAX)
    if not text:
        raise InvalidRequest(f"{path}.{key}", "String should have at least 1 character")
    return text


def _text(content: object, path: str, kinds: tuple[str, ...]) -> str:
    if isinstance(content, str):
        return fields.as_text(content, path)
    parts = fields.as_blocks(content, path)
    if not parts:
        raise InvalidRequest(path, "List should have at least 1 item")
    return _PART_SEPARATOR.join(
        _part_text(part, f"{path}.{index}", kinds) for index, part in enumerate(parts)
    )


def _part_text(entry: object, path: str, kinds: tuple[str, ...]) -> str:
    part = fields.as_object(entry, path)
    kind = fields.required(part, "type", path)
    if isinstance(kind, str) and kind in ("image_url", "input_audio", "file"):
        raise InvalidRequest(path, f"content parts of type '{kind}' are not supported")
    kind = fields.as_choice(kind, f"{path}.type", kinds)
    refuse_unknown(part, ("type", kind, "cache_control", "prompt_cache_breakpoint"), path)
    return fields.as_text(fields.required(part, kind, path), f"{path}.{kind}")
