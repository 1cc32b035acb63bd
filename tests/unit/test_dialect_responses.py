"""OpenAI's Responses: what is read, what the reply repeats, and what is refused."""

import json

import pytest

from schemas.dialects.canonical import (
    CanonicalMessage,
    CanonicalRequest,
    InvalidRequest,
    OutputFormat,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
)
from schemas.dialects.responses import parse
from schemas.requests import Dialect

SCHEMA: dict[str, object] = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL: dict[str, object] = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}
CALL: dict[str, object] = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "f",
    "arguments": "{}",
    "status": "completed",
}
OUTPUT: dict[str, object] = {"type": "function_call_output", "call_id": "call_1", "output": "2"}
ASK: dict[str, object] = {"role": "user", "content": "hi"}


def read(given: object = "hi", **changes: object) -> CanonicalRequest:
    """Return what a body with this input is read as."""
    return parse({"model": "m", "input": given, **changes}, "v1")


def refusal(given: object = "hi", **changes: object) -> InvalidRequest:
    """Return what refuses such a body."""
    with pytest.raises(InvalidRequest) as refused:
        read(given, **changes)
    return refused.value


def echoed(**changes: object) -> dict[str, object]:
    """Return what the reply to such a body repeats."""
    said = json.loads(read(**changes).echo or "")
    assert isinstance(said, dict)
    return said


def test_minimal_request_gets_the_documented_defaults() -> None:
    """A text is the user's; the length is open."""
    given = read()
    assert given.dialect is Dialect.RESPONSES
    assert given.messages == (CanonicalMessage(role="user", text="hi"),)
    assert (given.max_tokens, given.temperature, given.stream) == (None, 1.0, False)


def test_items_become_turns() -> None:
    """Messages, calls and outputs; items of one assistant turn are joined, reasoning dropped."""
    message = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
    }
    second = CALL | {"call_id": "call_2", "arguments": '{"a":1}'}
    turns = read(
        [
            {"role": "developer", "content": [{"type": "input_text", "text": "mind"}]},
            ASK,
            {"type": "reasoning", "id": "rs_1", "summary": []},
            message,
            CALL,
            second,
            OUTPUT | {"output": [{"type": "input_text", "text": "b"}]},
            OUTPUT | {"call_id": "call_2"},
        ],
        instructions="be kind",
    ).messages
    assert turns == (
        CanonicalMessage(role="system", text="be kind"),
        CanonicalMessage(role="system", text="mind"),
        CanonicalMessage(role="user", text="hi"),
        CanonicalMessage(
            role="assistant",
            text="I look.",
            tool_calls=(
                ToolCall(id="call_1", name="f", arguments="{}"),
                ToolCall(id="call_2", name="f", arguments='{"a": 1}'),
            ),
        ),
        CanonicalMessage(role="tool", text="b", tool_call_id="call_1", tool_name="f"),
        CanonicalMessage(role="tool", text="2", tool_call_id="call_2", tool_name="f"),
    )


def test_tools_formats_and_reasoning_are_read() -> None:
    """They are flat here."""
    given = read(
        tools=[TOOL],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        text={
            "format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True},
            "verbosity": "low",
        },
        reasoning={"effort": "high", "summary": "auto"},
        max_output_tokens=9,
        top_p=0,
    )
    assert given.tools == (Tool(name="f", description=None, schema=SCHEMA, strict=True),)
    assert given.tool_choice == ToolChoice(mode="named", names=("f",), parallel=False)
    assert given.output == OutputFormat(
        kind="json_schema", schema=SCHEMA, path="text.format.schema"
    )
    assert given.thinking == Thinking(enabled=True)
    assert (given.max_tokens, given.top_k) == (9, 1)
    allowed = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "f"}],
    }
    assert read(tools=[TOOL], tool_choice=allowed).tool_choice == ToolChoice(names=("f",))


def test_log_probabilities_are_asked_for_in_two_ways() -> None:
    """By `include`, and by the number of top ones."""
    assert read(include=["message.output_text.logprobs"]).logprobs == 0
    assert read(top_logprobs=4).logprobs == 4
    assert read(include=["reasoning.encrypted_content"], top_logprobs=0).logprobs is None


def test_the_reply_repeats_the_request() -> None:
    """Members as they were given, with the defaults of those that were not."""
    plain = echoed()
    assert plain["text"] == {"format": {"type": "text"}}
    assert (plain["tools"], plain["tool_choice"], plain["store"]) == ([], "auto", True)
    said = echoed(
        instructions="é",
        metadata={"a": "b"},
        tools=[{"type": "function", "name": "g"}],
        temperature=0.5,
        store=False,
        reasoning={"effort": "low"},
    )
    assert (said["instructions"], said["metadata"]) == ("é", {"a": "b"})
    assert (said["temperature"], said["store"]) == (0.5, False)
    assert said["reasoning"] == {"effort": "low", "summary": None}
    assert said["tools"] == [
        {
            "type": "function",
            "name": "g",
            "description": None,
            "parameters": None,
            "strict": False,
        }
    ]


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (None, "input"),
        ([], "input"),
        ([1], "input.0"),
        ([{"type": "reasoning"}], "input"),
        ([{"type": "item_reference", "id": "msg_1"}], "input.0"),
        ([{"type": "web_search_call"}], "input.0"),
        ([{"type": ["message"]}], "input.0.type"),
        ([{"role": "tool", "content": "a"}], "input.0.role"),
        ([{"role": "user", "content": [{"type": "input_image"}]}], "input.0.content.0"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input.0.content.0.text"),
        ([ASK | {"x": 1}], "input.0.x"),
        ([CALL], "input.0"),
        ([OUTPUT], "input.0.call_id"),
        ([CALL, OUTPUT, OUTPUT], "input.2.call_id"),
        ([CALL, CALL], "input.1.call_id"),
        ([CALL | {"arguments": "x"}, OUTPUT], "input.0.arguments"),
        ([{"role": "user", "content": [0] * 100_001}], "input"),
    ],
)
def test_bad_input_is_refused(given: object, path: str) -> None:
    """What is wrong is named by its place."""
    assert refusal(given).path == path


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools.0.function"),
        ({"tools": [TOOL], "tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"x": 1}}, "text.x"),
        ({"text": {"verbosity": "mute"}}, "text.verbosity"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"reasoning": {"effort": 1}}, "reasoning.effort"),
        ({"include": ["everything"]}, "include.0"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"store": "yes"}, "store"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"stream_options": {}}, "stream_options"),
        ({"instructions": 1}, "instructions"),
        ({"messages": []}, "messages"),
    ],
)
def test_what_cannot_be_honoured_is_refused(changes: dict[str, object], path: str) -> None:
    """State on the server above all."""
    assert refusal(**changes).path == path
