"""OpenAI's tools, formats and sampling extensions: what is read, and what is refused."""

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
from schemas.dialects.openai import parse
from schemas.requests import LogitBias

ASK: dict[str, object] = {"role": "user", "content": "hi"}
SCHEMA: dict[str, object] = {"type": "object", "properties": {"a": {"type": "integer"}}}
FUNCTION: dict[str, object] = {"name": "f", "description": "F", "parameters": SCHEMA}
TOOL: dict[str, object] = {"type": "function", "function": FUNCTION}
CALL: dict[str, object] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "f", "arguments": '{"a":1}'},
}
CALLS: dict[str, object] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ANSWER: dict[str, object] = {"role": "tool", "tool_call_id": "call_1", "content": "2"}


def request(*messages: object, **changes: object) -> dict[str, object]:
    """Return a body with these messages, or with one question."""
    return {"model": "m", "messages": list(messages) or [ASK], **changes}


def read(*messages: object, **changes: object) -> CanonicalRequest:
    """Return what such a body is read as."""
    return parse(request(*messages, **changes), "v1")


def refusal(*messages: object, **changes: object) -> InvalidRequest:
    """Return what refuses such a body."""
    with pytest.raises(InvalidRequest) as refused:
        read(*messages, **changes)
    assert refused.value.status == 400
    return refused.value


def test_tools_are_read() -> None:
    """Parameters may be absent; a missing type is an object's; strict null is false."""
    bare = {"type": "function", "function": {"name": "g", "strict": None}}
    untyped = {"type": "function", "function": {"name": "h", "parameters": {}, "strict": True}}
    assert read(tools=[TOOL, bare, untyped]).tools == (
        Tool(name="f", description="F", schema=SCHEMA),
        Tool(name="g", description=None, schema={"type": "object", "properties": {}}),
        Tool(name="h", description=None, schema={"type": "object"}, strict=True),
    )


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ("none", ToolChoice(mode="none")),
        ("auto", ToolChoice()),
        ("required", ToolChoice(mode="required")),
        (
            {"type": "function", "function": {"name": "f"}},
            ToolChoice(mode="named", names=("f",)),
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "f"}}],
                },
            },
            ToolChoice(mode="required", names=("f",)),
        ),
    ],
)
def test_tool_choices_are_read(given: object, choice: ToolChoice) -> None:
    """All kinds; allowed tools narrow what may be called."""
    assert read(tools=[TOOL], tool_choice=given).tool_choice == choice


def test_parallel_calls_can_be_switched_off() -> None:
    """They are allowed where nothing is said."""
    assert read(tools=[TOOL]).tool_choice.parallel
    assert not read(tools=[TOOL], parallel_tool_calls=False).tool_choice.parallel


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"tools": [TOOL, TOOL]}, "tools.1"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools.0.type"),
        ({"tools": [{"function": FUNCTION}]}, "tools.0.type"),
        ({"tools": [TOOL | {"x": 1}]}, "tools.0.x"),
        ({"tools": [{"type": "function", "function": FUNCTION | {"x": 1}}]}, "tools.0.function.x"),
        (
            {"tools": [{"type": "function", "function": FUNCTION | {"name": "ü"}}]},
            "tools.0.function.name",
        ),
        (
            {
                "tools": [
                    {"type": "function", "function": FUNCTION | {"parameters": {"type": "array"}}}
                ]
            },
            "tools.0.function.parameters.type",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "custom"}}, "tool_choice.type"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice.function.name",
        ),
        (
            {
                "tools": [TOOL],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": []},
                },
            },
            "tool_choice.allowed_tools.tools",
        ),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    ],
)
def test_bad_tools_are_refused(changes: dict[str, object], path: str) -> None:
    """The refusal's `param` is the member."""
    assert refusal(**changes).path == path


def test_calls_and_answers_become_turns() -> None:
    """Arguments are read as JSON, empty ones as none; what the reply thought is dropped."""
    second = CALL | {"id": "call_2", "function": {"name": "f", "arguments": ""}}
    turns = read(
        ASK,
        CALLS | {"tool_calls": [CALL, second], "reasoning_content": "hm", "refusal": None},
        ANSWER | {"tool_call_id": "call_2", "content": [{"type": "text", "text": "b"}]},
        ANSWER | {"name": "f"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": None, "refusal": "never"},
        tools=[TOOL],
    ).messages[1:]
    assert turns == (
        CanonicalMessage(
            role="assistant",
            text="",
            tool_calls=(
                ToolCall(id="call_1", name="f", arguments='{"a": 1}'),
                ToolCall(id="call_2", name="f", arguments="{}"),
            ),
        ),
        CanonicalMessage(role="tool", text="b", tool_call_id="call_2", tool_name="f"),
        CanonicalMessage(role="tool", text="2", tool_call_id="call_1", tool_name="f"),
        CanonicalMessage(role="assistant", text="no"),
        CanonicalMessage(role="assistant", text="never"),
    )


@pytest.mark.parametrize(
    ("messages", "path"),
    [
        ([ASK, CALLS], "messages.1"),
        ([ASK, CALLS, ASK], "messages.1"),
        ([ASK, ANSWER], "messages.1.tool_call_id"),
        ([ASK, CALLS, ANSWER, ANSWER], "messages.3.tool_call_id"),
        ([ASK, CALLS, {"role": "tool", "content": "a"}], "messages.2.tool_call_id"),
        ([ASK, CALLS | {"tool_calls": [CALL, CALL]}], "messages.1.tool_calls"),
        (
            [ASK, CALLS | {"tool_calls": [CALL | {"type": "custom"}]}],
            "messages.1.tool_calls.0",
        ),
        (
            [ASK, CALLS | {"tool_calls": [CALL | {"function": {"name": "f", "arguments": "[]"}}]}],
            "messages.1.tool_calls.0.function.arguments",
        ),
        (
            [
                ASK,
                CALLS
                | {"tool_calls": [CALL | {"function": {"name": "f", "arguments": "[" * 99_999}}]},
            ],
            "messages.1.tool_calls.0.function.arguments",
        ),
        ([ASK, {"role": "assistant", "content": None}], "messages.1.content"),
        ([ASK | {"tool_calls": [CALL]}], "messages.0.tool_calls"),
        (
            [{"role": "user", "content": [{"type": "refusal", "refusal": "a"}]}],
            "messages.0.content.0.type",
        ),
    ],
)
def test_calls_without_answers_and_answers_without_calls_are_refused(
    messages: list[object], path: str
) -> None:
    """Every call is answered right after it, once."""
    assert refusal(*messages).path == path


def test_unanswered_calls_are_named_in_the_apis_words() -> None:
    """The message is the hosted API's."""
    assert refusal(ASK, CALLS, ASK).message == (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to "
        "each 'tool_call_id'. The following tool_call_ids did not have response messages: call_1"
    )


@pytest.mark.parametrize(
    ("changes", "output"),
    [
        ({"response_format": {"type": "text"}}, None),
        (
            {"response_format": {"type": "json_object"}},
            OutputFormat(kind="json_object", path="response_format"),
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
            OutputFormat(
                kind="json_schema", schema=SCHEMA, path="response_format.json_schema.schema"
            ),
        ),
        (
            {"structured_outputs": {"json": SCHEMA}},
            OutputFormat(kind="json_schema", schema=SCHEMA, path="structured_outputs.json"),
        ),
        (
            {"guided_json": '{"type": "null"}'},
            OutputFormat(kind="json_schema", schema={"type": "null"}, path="guided_json"),
        ),
        (
            {"structured_outputs": {"regex": "a+"}},
            OutputFormat(kind="regex", pattern="a+", path="structured_outputs.regex"),
        ),
        (
            {"guided_grammar": 'start: "a"'},
            OutputFormat(kind="lark", pattern='start: "a"', path="guided_grammar"),
        ),
        (
            {"guided_choice": ["a", "b", "a"]},
            OutputFormat(kind="choice", choices=("a", "b"), path="guided_choice"),
        ),
        (
            {"structured_outputs": {"json_object": True}},
            OutputFormat(kind="json_object", path="structured_outputs.json_object"),
        ),
    ],
)
def test_formats_are_read(changes: dict[str, object], output: OutputFormat | None) -> None:
    """The API's own, and vLLM's extensions in both spellings."""
    assert read(**changes).output == output


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"response_format": "text"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
        (
            {"guided_regex": "a", "response_format": {"type": "json_object"}},
            "guided_regex",
        ),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
    ],
)
def test_bad_formats_are_refused(changes: dict[str, object], path: str) -> None:
    """Only one format can be followed, and it must say what it is."""
    assert refusal(**changes).path == path


def test_sampling_members_are_read() -> None:
    """Log probabilities, choices, biases, stop tokens and bad words, as vLLM names them."""
    given = read(
        logprobs=True,
        top_logprobs=3,
        n=2,
        logit_bias={"5": -100, "0": 1.5},
        stop_token_ids=[7, 8],
        bad_words=["no", "no"],
    )
    assert (given.logprobs, given.choices) == (3, 2)
    assert given.logit_bias == (
        LogitBias(token_id=5, bias=-100.0),
        LogitBias(token_id=0, bias=1.5),
    )
    assert (given.stop_token_ids, given.bad_words) == ((7, 8), ("no",))
    assert read(logprobs=True).logprobs == 0
    assert read(logprobs=False, top_logprobs=0).logprobs is None


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": True}, "n"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"a": 1}}, "logit_bias.a"),
        ({"logit_bias": {"01": 1}}, "logit_bias.01"),
        ({"logit_bias": {"²": 1}}, "logit_bias.²"),
        ({"logit_bias": {"9999999999": 1}}, "logit_bias.9999999999"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": {str(token_id): 1 for token_id in range(1_025)}}, "logit_bias"),
        ({"stop_token_ids": [-1]}, "stop_token_ids.0"),
        ({"stop_token_ids": [1] * 129}, "stop_token_ids"),
        ({"bad_words": [" "]}, "bad_words.0"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"verbosity": "mute"}, "verbosity"),
        ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs.x"),
    ],
)
def test_bad_sampling_members_are_refused(changes: dict[str, object], path: str) -> None:
    """Each has its bound."""
    assert refusal(**changes).path == path


@pytest.mark.parametrize(
    ("changes", "thinking"),
    [
        ({}, None),
        ({"reasoning_effort": "none"}, Thinking(enabled=False)),
        ({"reasoning_effort": "low"}, Thinking(enabled=True)),
        ({"chat_template_kwargs": {"enable_thinking": False}}, Thinking(enabled=False)),
        ({"chat_template_kwargs": {}, "verbosity": "low"}, None),
    ],
)
def test_efforts_ask_to_think(changes: dict[str, object], thinking: Thinking | None) -> None:
    """Silence leaves it to the model."""
    assert read(**changes).thinking == thinking
