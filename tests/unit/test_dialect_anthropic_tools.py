"""Anthropic's tools, calls and results: what is read, what is refused, and in which words."""

import pytest

from schemas.dialects.anthropic import VERSIONS, parse, parse_count
from schemas.dialects.canonical import (
    CanonicalMessage,
    InvalidRequest,
    Tool,
    ToolCall,
    ToolChoice,
)

OLD, NEW = VERSIONS
ASK: dict[str, object] = {"role": "user", "content": "hi"}
SCHEMA: dict[str, object] = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL: dict[str, object] = {"name": "f", "description": "F", "input_schema": SCHEMA}
CALL: dict[str, object] = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}
RESULT: dict[str, object] = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "2"}
BREAK: dict[str, object] = {"type": "ephemeral"}


def request(*messages: object, **changes: object) -> dict[str, object]:
    """Return a body with these messages, or with one question."""
    return {"model": "m", "max_tokens": 2_000, "messages": list(messages) or [ASK], **changes}


def said(role: str, *blocks: object) -> dict[str, object]:
    """Return one turn of blocks."""
    return {"role": role, "content": list(blocks)}


def text(words: str, **more: object) -> dict[str, object]:
    """Return a text block."""
    return {"type": "text", "text": words, **more}


def refusal(body: object, version: str = NEW) -> str:
    """Return the message that refuses a body."""
    with pytest.raises(InvalidRequest) as refused:
        parse(body, version)
    assert refused.value.status == 400
    return refused.value.message


def test_tools_are_read_and_their_optional_members_tolerated() -> None:
    """Name, description, schema and strictness are read; hints for hosted models pass."""
    hints: dict[str, object] = {
        "type": "custom",
        "strict": True,
        "cache_control": BREAK,
        "defer_loading": False,
        "eager_input_streaming": True,
        "allowed_callers": ["direct"],
        "input_examples": [{"a": 1}],
    }
    read = parse(request(tools=[TOOL, TOOL | hints | {"name": "g"}]), NEW)
    assert read.tools == (
        Tool(name="f", description="F", schema=SCHEMA),
        Tool(name="g", description="F", schema=SCHEMA, strict=True),
    )
    assert read.tool_choice == ToolChoice()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("bash_20250124", "bash"),
        ("text_editor_20250124", "str_replace_editor"),
        ("text_editor_20250728", "str_replace_based_edit_tool"),
        ("memory_20250818", "memory"),
    ],
)
def test_typed_tools_that_clients_run_get_a_schema(kind: str, name: str) -> None:
    """They come without schema, so that the model is given one; their names are fixed."""
    (tool,) = parse(request(tools=[{"type": kind, "name": name}]), NEW).tools
    assert tool.name == name and tool.description
    assert tool.schema["additionalProperties"] is False
    assert refusal(request(tools=[{"type": kind, "name": "x"}])).startswith("tools.0.name: ")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"type": "auto"}, ToolChoice()),
        ({"type": "none"}, ToolChoice(mode="none")),
        ({"type": "any"}, ToolChoice(mode="required")),
        ({"type": "tool", "name": "f"}, ToolChoice(mode="named", names=("f",))),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            ToolChoice(parallel=False),
        ),
        (
            {"type": "any", "disable_parallel_tool_use": True},
            ToolChoice(mode="required", parallel=False),
        ),
    ],
)
def test_tool_choices_are_read(given: object, read: ToolChoice) -> None:
    """All four kinds, parallel or not."""
    assert parse(request(tools=[TOOL], tool_choice=given), NEW).tool_choice == read


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tools": [TOOL, TOOL]}, "tools: Tool names must be unique: 'f'"),
        ({"tools": [TOOL | {"name": "a b"}]}, None),
        ({"tools": [TOOL | {"name": "a" * 65}]}, None),
        ({"tools": [TOOL | {"colour": 1}]}, "tools.0.colour: Extra inputs are not permitted"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema: Field required"),
        (
            {"tools": [{"name": "f", "input_schema": {}}]},
            "tools.0.input_schema.type: Field required",
        ),
        (
            {"tools": [{"name": "f", "input_schema": {"type": "string"}}]},
            "tools.0.input_schema.type: Input should be 'object'",
        ),
        ({"tools": [TOOL] * 513}, "tools: List should have at most 512 items"),
        ({"tools": [TOOL | {"type": 1}]}, "tools.0.type: Input should be a valid string"),
        ({"tool_choice": {"type": "any"}}, None),
        (
            {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}},
            "tool_choice.name: no tool 'g' in tools",
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name: Field required"),
        ({"tools": [TOOL], "tool_choice": {"type": "none", "name": "f"}}, None),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice: Input should be an object"),
    ],
)
def test_bad_tools_are_refused(changes: dict[str, object], message: str | None) -> None:
    """Each refusal names the member."""
    said = refusal(request(**changes))
    assert said.startswith("tool") and (message is None or said == message)


@pytest.mark.parametrize(
    "kind", ["web_search_20250305", "code_execution_20260120", "mcp_toolset", "computer_20250124"]
)
def test_tools_that_servers_run_are_refused_by_type(kind: str) -> None:
    """The refusal names the tool's type."""
    assert kind in refusal(request(tools=[{"type": kind, "name": "x"}]))


def test_calls_and_results_become_turns() -> None:
    """A call stands in the assistant's turn, each result in a turn of its own, then the text."""
    read = parse(
        request(
            ASK,
            said("assistant", text("I look."), CALL, CALL | {"id": "toolu_2", "input": {}}),
            said(
                "user",
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "content": [text(""), text("b")],
                    "is_error": True,
                },
                {"type": "tool_result", "tool_use_id": "toolu_1"},
                text("and?"),
            ),
        ),
        NEW,
    )
    assert read.messages[1:] == (
        CanonicalMessage(
            role="assistant",
            text="I look.",
            tool_calls=(
                ToolCall(id="toolu_1", name="f", arguments='{"a": 1}'),
                ToolCall(id="toolu_2", name="f", arguments="{}"),
            ),
        ),
        CanonicalMessage(
            role="tool", text="\nb", tool_call_id="toolu_2", tool_name="f", is_error=True
        ),
        CanonicalMessage(role="tool", text="", tool_call_id="toolu_1", tool_name="f"),
        CanonicalMessage(role="user", text="and?"),
    )


def test_results_may_be_spread_over_user_turns_and_system_turns_wait() -> None:
    """Turns of one role count as one; a system turn amid a call and its result comes after it."""
    read = parse(
        request(
            ASK,
            said("assistant", CALL),
            said("assistant", CALL | {"id": "toolu_2"}),
            said("user", RESULT),
            {"role": "system", "content": "mind"},
            said("user", RESULT | {"tool_use_id": "toolu_2"}, text("go")),
        ),
        NEW,
    )
    assert [turn.role for turn in read.messages] == [
        *("user", "assistant", "tool", "tool", "system", "user")
    ]
    assert len(read.messages[1].tool_calls) == 2


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (
            [ASK, said("assistant", CALL), ASK],
            "messages.1: tool_use ids were found without tool_result blocks immediately after: "
            "toolu_1",
        ),
        (
            [ASK, said("assistant", CALL)],
            "messages.1: tool_use ids were found without tool_result blocks immediately after: "
            "toolu_1",
        ),
        (
            [ASK, said("assistant", CALL), said("user", text("a"), RESULT)],
            "messages.1: tool_use ids were found without tool_result blocks immediately after: "
            "toolu_1",
        ),
        (
            [
                ASK,
                said("assistant", CALL, CALL | {"id": "toolu_2"}),
                said("user", RESULT),
                said("assistant", text("a")),
            ],
            "messages.1: tool_use ids were found without tool_result blocks immediately after: "
            "toolu_2",
        ),
        ([said("user", RESULT)], None),
        ([ASK, said("assistant", CALL), said("user", RESULT, RESULT)], None),
        (
            [ASK, said("assistant", CALL), said("user", RESULT), said("assistant", CALL)],
            "messages.3: tool_use ids must be unique: toolu_1",
        ),
        ([ASK, said("assistant", CALL | {"input": "x"})], None),
        ([ASK, said("assistant", CALL | {"id": ""})], None),
        ([said("user", CALL)], None),
        ([said("assistant", RESULT), ASK], None),
        ([said("user", RESULT | {"content": [{"type": "image"}]})], None),
    ],
)
def test_calls_without_results_and_results_without_calls_are_refused(
    messages: list[object], message: str | None
) -> None:
    """Every call is answered at the beginning of the next user turn, once."""
    words = refusal(request(*messages, tools=[TOOL]))
    assert words.startswith("messages.") and (message is None or words == message)


def test_counting_reads_tools_too() -> None:
    """What is counted is what a message of the same body would be made of."""
    body = request(ASK, tools=[TOOL], thinking={"type": "enabled", "budget_tokens": 5_000})
    del body["max_tokens"]
    counted = parse_count(body, NEW)
    assert counted.tools == parse(request(tools=[TOOL]), NEW).tools
    assert counted.thinking is not None
