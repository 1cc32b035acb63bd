"""What a chat template is shown of a conversation with tools.

Owns two forms. *Native*: templates that know tools get OpenAI's structures (`tool_calls`, role
`tool`). *Described*: for all others tools are described in the system text, calls are written into
the assistant's text, and results stand in the user's turn, all in the form that Hermes and Qwen
models were trained on and that the parser `hermes` reads.

Owns also the renditions of a conversation that a template refuses as it is. Called by
`infra/prompt_text.py`, which gives the `mark` that every text of a client goes through.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from schemas.dialects.canonical import CanonicalMessage, Tool

Mark = Callable[[str], str]
"""Makes text of a client safe to stand in a prompt."""
Turn = dict[str, object]
"""One message as templates know it; JSON values."""

_TURN_SEPARATOR: Final = "\n\n"
_TOOLS_HEAD: Final = (
    "You can call functions to help the user. They are described here, one JSON object a line:\n"
    "<tools>\n"
)
_TOOLS_TAIL: Final = (
    "\n</tools>\n"
    "To call a function, write its name and its arguments as a JSON object between these tags, "
    "once for each call:\n"
    '<tool_call>\n{"name": "function name", "arguments": {"argument name": "value"}}\n'
    "</tool_call>\n"
    "The results come back between <tool_response> tags. If no function helps, answer without one."
)


def renditions(
    messages: Sequence[CanonicalMessage], *, has_tools: bool
) -> Iterator[tuple[CanonicalMessage, ...]]:
    """Yield the conversation as it is, then in forms that stricter templates take.

    Order: as it is; with roles that alternate, system text at the beginning only and one call a
    turn; the same without any system turn. With tools a system turn amid the conversation is moved
    at once: models overlook their tools after one (vllm#48874).
    """
    plain = tuple(messages)
    yield _with_early_system(plain) if has_tools else plain
    plainer = tuple(_one_call_a_turn(_with_early_system(plain, merges=True)))
    yield plainer
    if plainer and plainer[0].role == "system" and len(plainer) > 1:
        lead, first, *rest = plainer
        if first.role == "user":
            text = lead.text + _TURN_SEPARATOR + first.text
            yield (replace(first, text=text), *rest)


def native_turns(messages: Iterable[CanonicalMessage], mark: Mark) -> list[Turn]:
    """Return turns for a template that knows tools."""
    return [_native(message, mark) for message in messages]


def native_tools(tools: Iterable[Tool], mark: Mark) -> list[Turn]:
    """Return tools for a template that knows them."""
    return [{"type": "function", "function": _function(tool, mark)} for tool in tools]


def described_turns(
    messages: Iterable[CanonicalMessage], tools: Sequence[Tool], mark: Mark
) -> list[Turn]:
    """Return turns for a template that knows no tools."""
    groups: list[tuple[str, list[str]]] = []
    follows_result = False
    for message in messages:
        is_result = message.role == "tool"
        role = "user" if is_result else message.role
        if role == "user" and follows_result:
            groups[-1][1].append("\n" if is_result else _TURN_SEPARATOR)
        else:
            groups.append((role, []))
        groups[-1][1].append(_described(message, mark))
        follows_result = is_result
    if tools:
        description = _description(tools, mark)
        if groups and groups[0][0] == "system":
            groups[0][1].extend((_TURN_SEPARATOR, description))
        else:
            groups.insert(0, ("system", [description]))
    return [_said(role, "".join(pieces)) for role, pieces in groups]


def texts_of(messages: Iterable[CanonicalMessage], tools: Iterable[Tool]) -> Iterator[str]:
    """Yield every text of a client that can stand in the prompt."""
    for message in messages:
        yield message.text
        yield from filter(None, (message.thinking, message.tool_call_id, message.tool_name))
        for call in message.tool_calls:
            yield from (call.id, call.name, call.arguments)
    for tool in tools:
        yield from (tool.name, tool.description or "", _json(tool.schema))


def _said(role: str, text: str) -> Turn:
    return {"role": role, "content": text}


def _native(message: CanonicalMessage, mark: Mark) -> Turn:
    if message.role == "tool":
        turn = _said("tool", _result_text(message, mark))
        if message.tool_call_id is not None:
            turn["tool_call_id"] = mark(message.tool_call_id)
        if message.tool_name is not None:
            turn["name"] = mark(message.tool_name)
        return turn
    turn = _said(message.role, mark(message.text))
    if message.thinking is not None:
        turn["reasoning_content"] = mark(message.thinking)
    if message.tool_calls:  # some templates ask only whether the member is there
        turn["tool_calls"] = [
            {
                "id": mark(call.id),
                "type": "function",
                "function": {
                    "name": mark(call.name),
                    "arguments": _marked(json.loads(call.arguments), mark),
                },
            }
            for call in message.tool_calls
        ]
    return turn


def _function(tool: Tool, mark: Mark) -> Turn:
    # Templates add a description to other text without asking whether there is one.
    return {
        "name": mark(tool.name),
        "description": mark(tool.description or ""),
        "parameters": _marked(tool.schema, mark),
    }


def _description(tools: Iterable[Tool], mark: Mark) -> str:
    return _TOOLS_HEAD + "\n".join(map(_json, native_tools(tools, mark))) + _TOOLS_TAIL


def _call(name: str, arguments: str, mark: Mark) -> str:
    call = f'{{"name": {_json(mark(name))}, "arguments": {mark(arguments)}}}'
    return f"<tool_call>\n{call}\n</tool_call>"


def _described(message: CanonicalMessage, mark: Mark) -> str:
    """Return a turn as text: results and calls between their tags."""
    if message.role == "tool":
        return f"<tool_response>\n{_result_text(message, mark)}\n</tool_response>"
    calls = [_call(call.name, call.arguments, mark) for call in message.tool_calls]
    return "\n".join(filter(None, (mark(message.text), *calls)))


def _result_text(message: CanonicalMessage, mark: Mark) -> str:
    text = mark(message.text)
    return f"Error: {text}" if message.is_error else text


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _marked(value: object, mark: Mark) -> object:
    """Return a JSON value with every string in it marked."""
    if isinstance(value, str):
        return mark(value)
    if isinstance(value, dict):
        return {mark(key): _marked(member, mark) for key, member in value.items()}
    if isinstance(value, list):
        return [_marked(member, mark) for member in value]
    return value


def _with_early_system(
    messages: Sequence[CanonicalMessage], *, merges: bool = False
) -> tuple[CanonicalMessage, ...]:
    """Move system turns amid the conversation into the user's turns.

    Args:
        merges: merge consecutive turns of one role too.
    """
    groups: list[list[CanonicalMessage]] = []
    for message in messages:
        last = groups[-1][-1].role if groups else "system"
        late = message.role == "system" != last
        turn = message
        if late:
            text = f"<system-reminder>\n{message.text}\n</system-reminder>"
            turn = replace(message, role="user", text=text)
        if groups and turn.role == last != "tool" and (late or merges):
            groups[-1].append(turn)
        else:
            groups.append([turn])
    return tuple(group[0] if len(group) == 1 else _joined(group) for group in groups)


def _joined(group: Sequence[CanonicalMessage]) -> CanonicalMessage:
    thoughts = [turn.thinking for turn in group if turn.thinking]
    return replace(
        group[-1],
        text=_TURN_SEPARATOR.join(turn.text for turn in group if turn.text),
        thinking=_TURN_SEPARATOR.join(thoughts) or None,
        tool_calls=tuple(call for turn in group for call in turn.tool_calls),
    )


def _one_call_a_turn(messages: Sequence[CanonicalMessage]) -> Iterator[CanonicalMessage]:
    """Let each call be followed by its own result, where all of them are there."""
    at = 0
    while at < len(messages):
        turn = messages[at]
        results = messages[at + 1 : at + 1 + len(turn.tool_calls)]
        by_id = {result.tool_call_id: result for result in results if result.role == "tool"}
        if len(turn.tool_calls) < 2 or {call.id for call in turn.tool_calls} != by_id.keys():
            yield turn
            at += 1
            continue
        for number, call in enumerate(turn.tool_calls):
            first = number == 0
            yield replace(
                turn,
                text=turn.text if first else "",
                thinking=turn.thinking if first else None,
                tool_calls=(call,),
            )
            yield by_id[call.id]
        at += 1 + len(results)
