"""`functions` and `function_call` of Chat Completions: how they are read, what is refused."""

import pytest

from schemas.dialects.canonical import CanonicalRequest, InvalidRequest, Tool, ToolCall, ToolChoice
from schemas.dialects.openai import parse
from schemas.dialects.openai_functions import FUNCTIONS_VERSION
from schemas.reply_plan import plan_of
from schemas.tool_grammar import HERMES, Form

ASK: dict[str, object] = {"role": "user", "content": "hi"}
SCHEMA: dict[str, object] = {"type": "object", "properties": {"a": {"type": "integer"}}}
FUNCTION: dict[str, object] = {"name": "f", "description": "F", "parameters": SCHEMA}
TOOL: dict[str, object] = {"type": "function", "function": FUNCTION}
CALLED: dict[str, object] = {
    "role": "assistant",
    "content": None,
    "function_call": {"name": "f", "arguments": '{"a":1}'},
}
RESULT: dict[str, object] = {"role": "function", "name": "f", "content": "2"}


def read(*messages: object, **changes: object) -> CanonicalRequest:
    """Return what a body with these messages, or with one question, is read as."""
    return parse({"model": "m", "messages": list(messages) or [ASK], **changes}, "v1")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice(parallel=False)),
        ("auto", ToolChoice(parallel=False)),
        ("none", ToolChoice(mode="none")),
        ({"name": "f"}, ToolChoice(mode="named", names=("f",), parallel=False)),
    ],
)
def test_functions_are_tools_of_which_one_is_called(choice: object, expected: ToolChoice) -> None:
    """They are offered like tools; the reply's header says in which form a call is shown."""
    asked = read(functions=[FUNCTION], function_call=choice)
    assert asked.tools == (Tool(name="f", description="F", schema=SCHEMA),)
    assert asked.tool_choice == expected
    assert asked.dialect_version == FUNCTIONS_VERSION


@pytest.mark.parametrize("call", [None, "none", "auto"])
def test_no_functions_are_no_functions(call: object) -> None:
    """An empty list and a choice that asks for nothing leave a request, and its tools, as it is."""
    asked = read(functions=[], function_call=call, tools=[TOOL], tool_choice="required")
    assert asked == read(tools=[TOOL], tool_choice="required")


def test_earlier_calls_and_results_are_shown_to_the_model() -> None:
    """Each call has an id of its own, which its result repeats; it may stay without one."""
    turns = read(ASK, CALLED, RESULT, CALLED, ASK, CALLED, RESULT, CALLED).messages
    calls = [turn.tool_calls[0] for turn in turns if turn.tool_calls]
    assert [turn.role for turn in turns[1:4]] == ["assistant", "tool", "assistant"]
    assert calls[0] == ToolCall(id=calls[0].id, name="f", arguments='{"a": 1}')
    assert len({call.id for call in calls}) == 4
    results = [turn for turn in turns if turn.role == "tool"]
    assert [result.tool_call_id for result in results] == [calls[0].id, calls[2].id]
    assert {result.tool_name for result in results} == {"f"} and results[0].text == "2"


@pytest.mark.parametrize(
    ("messages", "changes", "path"),
    [
        ([], {"functions": {}}, "functions"),
        ([], {"functions": [{}]}, "functions.0.name"),
        ([], {"functions": [FUNCTION, FUNCTION]}, "functions.1"),
        ([], {"functions": [{"name": "a b"}]}, "functions.0.name"),
        ([], {"functions": [FUNCTION | {"type": "function"}]}, "functions.0.type"),
        ([], {"functions": [FUNCTION], "function_call": "required"}, "function_call"),
        ([], {"functions": [FUNCTION], "function_call": {"name": "g"}}, "function_call.name"),
        ([], {"functions": [FUNCTION], "function_call": {}}, "function_call.name"),
        ([], {"function_call": {"name": "f"}}, "function_call.name"),
        ([], {"function_call": 1}, "function_call"),
        ([], {"functions": [FUNCTION], "tools": [TOOL]}, "tools"),
        ([], {"functions": [FUNCTION], "tool_choice": "auto"}, "tool_choice"),
        ([], {"functions": [FUNCTION], "parallel_tool_calls": False}, "parallel_tool_calls"),
        ([ASK, RESULT], {}, "messages.1.name"),
        ([ASK, CALLED, RESULT, RESULT], {}, "messages.3.name"),
        ([ASK, CALLED, RESULT | {"name": "g"}], {}, "messages.2.name"),
        ([ASK, CALLED, RESULT | {"tool_call_id": "a"}], {}, "messages.2.tool_call_id"),
        ([ASK, CALLED, {"role": "function", "name": "f"}], {}, "messages.2.content"),
        ([ASK, CALLED | {"function_call": {}}], {}, "messages.1.function_call.name"),
        (
            [ASK, CALLED | {"function_call": {"name": "f", "arguments": "["}}],
            {},
            "messages.1.function_call.arguments",
        ),
        (
            [
                ASK,
                CALLED | {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": ""}}]},
            ],
            {},
            "messages.1.function_call",
        ),
    ],
)
def test_what_is_wrong_is_named(
    messages: list[object], changes: dict[str, object], path: str
) -> None:
    """The refusal's `param` is the member."""
    with pytest.raises(InvalidRequest) as refused:
        read(*messages, **changes)
    assert refused.value.path == path and refused.value.status == 400


def test_a_schema_that_cannot_be_enforced_is_named_where_it_stood() -> None:
    """A strict function's unsupported keyword is found under `functions`, not under `tools`."""
    schema = SCHEMA | {"unevaluatedProperties": False, "not": {}}
    asked = read(functions=[FUNCTION | {"parameters": schema, "strict": True}])
    with pytest.raises(InvalidRequest) as refused:
        plan_of(asked, Form(tool_parser=HERMES, reasoning_parser=None, control_tokens=frozenset()))
    assert refused.value.path.startswith("functions.0.parameters")
