"""Anthropic's requests: what is read, what is refused, and in which words."""

import pytest

from schemas.dialects.anthropic import (
    VERSIONS,
    check_version,
    error_body,
    invalid_body,
    parse,
    parse_count,
)
from schemas.dialects.canonical import CanonicalMessage, CanonicalRequest, InvalidRequest
from schemas.requests import Dialect

OLD, NEW = VERSIONS
HELLO: list[object] = [{"role": "user", "content": "hi"}]


def request(**changes: object) -> dict[str, object]:
    """Return a minimal body with changes."""
    body: dict[str, object] = {"model": "tiny", "max_tokens": 16, "messages": HELLO}
    return body | changes


def refusal(body: object, version: str = NEW) -> str:
    """Return the message that refuses a body."""
    with pytest.raises(InvalidRequest) as refused:
        parse(body, version)
    assert refused.value.status == 400
    return refused.value.message


def turns(*messages: object, **changes: object) -> list[tuple[str, str]]:
    """Return role and text of what these messages are read as."""
    read = parse(request(messages=list(messages), **changes), NEW)
    return [(turn.role, turn.text) for turn in read.messages]


def test_minimal_request_gets_the_documented_defaults() -> None:
    """Only model, max_tokens and messages are required."""
    assert parse(request(), NEW) == CanonicalRequest(
        dialect=Dialect.ANTHROPIC,
        dialect_version=NEW,
        model="tiny",
        messages=(CanonicalMessage(role="user", text="hi"),),
        max_tokens=16,
    )


def test_all_built_fields_are_read() -> None:
    """Sampling, stops, extensions and the user reach the canonical request."""
    read = parse(
        request(
            stream=True,
            stop_sequences=["a", "b", "a"],
            temperature=0,
            top_p=0.5,
            top_k=3,
            seed=-7,
            ignore_eos=True,
            min_tokens=16,
            metadata={"user_id": "u"},
            service_tier="auto",
            cache_control={"type": "ephemeral"},
        ),
        OLD,
    )
    assert read.stream and read.ignore_eos
    assert read.stop == ("a", "b")
    assert (read.temperature, read.top_p, read.top_k) == (0.0, 0.5, 3)
    assert (read.seed, read.min_tokens, read.user) == (-7, 16, "u")


def test_blocks_are_joined_and_turns_of_one_role_merged() -> None:
    """Text blocks and consecutive turns become one text; system may stand anywhere."""
    blocks = [
        {"type": "text", "text": "a", "citations": None},
        {"type": "text", "text": "b", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ]
    read = turns(
        {"role": "system", "content": "more"},
        {"role": "user", "content": blocks},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
        {"role": "system", "content": "mind"},
        {"role": "user", "content": "e"},
        system=[{"type": "text", "text": "first"}],
    )
    assert read == [
        ("system", "first\n\nmore"),
        ("user", "a\nb\n\nc"),
        ("assistant", "d"),
        ("system", "mind"),
        ("user", "e"),
    ]


def test_last_assistant_turn_is_continued() -> None:
    """A prefill stays open; an empty one asks for an ordinary answer."""
    prefill = {"role": "assistant", "content": "The answer is"}
    read = parse(request(messages=[*HELLO, prefill]), NEW)
    assert [turn.continued for turn in read.messages] == [False, True]
    read = parse(request(messages=[*HELLO, {"role": "assistant", "content": ""}]), NEW)
    assert [turn.role for turn in read.messages] == ["user"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "the request body must be a JSON object"),
        ({}, "max_tokens: Field required"),
        ({"max_tokens": 1}, "model: Field required"),
        ({"max_tokens": 1, "model": "m"}, "messages: Field required"),
        (request(messages=[]), "messages: at least one message is required"),
        (
            request(messages=[{"role": "assistant", "content": ""}]),
            "messages: at least one message is required",
        ),
        (request(messages="hi"), "messages: Input should be a valid list"),
        (request(messages=["hi"]), "messages.0: Input should be an object"),
        (
            request(messages=[{"role": "user", "content": 5}]),
            "messages.0.content: Input should be a string or a list of content blocks",
        ),
        (request(system=5), "system: Input should be a string or a list of content blocks"),
        (request(messages=[{"role": "user"}]), "messages.0.content: Field required"),
        (request(messages=[{"content": "a"}]), "messages.0.role: Field required"),
        (
            request(messages=[{"role": "user", "content": ""}]),
            "messages.0.content: user messages must have non-empty content",
        ),
        (
            request(messages=[{"role": "user", "content": [{"type": "text", "text": ""}]}]),
            "messages.0.content.0: text content blocks must be non-empty",
        ),
        (
            request(messages=[{"role": "user", "content": [{"type": "text", "text": 1}]}]),
            "messages.0.content.0.text: Input should be a valid string",
        ),
        (
            request(messages=[{"role": "user", "content": "\ud800"}]),
            "messages.0.content: Input should be valid Unicode: lone surrogate",
        ),
        (
            request(messages=[{"role": "user", "content": "a", "name": "b"}]),
            "messages.0.name: Extra inputs are not permitted",
        ),
        (
            request(messages=[*HELLO, {"role": "assistant", "content": "a "}]),
            "messages.1.content: final assistant content cannot end with trailing whitespace",
        ),
        (request(messages=HELLO * 100_001), "messages: List should have at most 100000 items"),
        (
            request(messages=[{"role": "user", "content": [1] * 60_000}] * 2),
            "messages: at most 100000 content blocks are allowed",
        ),
        (request(max_tokens=-1), "max_tokens: must be greater than or equal to 0"),
        (
            request(max_tokens=0, stream=True),
            "stream: is not allowed when max_tokens is 0",
        ),
        (
            request(
                max_tokens=0,
                tools=[{"name": "f", "input_schema": {"type": "object"}}],
                tool_choice={"type": "any"},
            ),
            "tool_choice: is not allowed when max_tokens is 0",
        ),
        (
            request(max_tokens=0, output_config={"format": {"type": "json_schema", "schema": {}}}),
            "output_config.format: is not allowed when max_tokens is 0",
        ),
        (
            request(max_tokens=0, output_format={"type": "json_schema", "schema": {}}),
            "output_format: is not allowed when max_tokens is 0",
        ),
        (
            request(max_tokens=0, thinking={"type": "enabled", "budget_tokens": 1024}),
            "thinking: is not allowed when max_tokens is 0",
        ),
        (request(max_tokens=True), "max_tokens: Input should be a valid integer"),
        (request(max_tokens=1.0), "max_tokens: Input should be a valid integer"),
        (request(max_tokens=10**30), "max_tokens: must be less than or equal to 2147483647"),
        (request(seed=2**63), "seed: must be less than or equal to 9223372036854775807"),
        (request(min_tokens=17), "min_tokens: must be less than or equal to max_tokens, 16"),
        (request(stop_sequences=[" \n"]), None),
        (request(stop_sequences=["x"] * 17), "stop_sequences: List should have at most 16 items"),
        (request(stop_sequences=[""]), "stop_sequences.0: stop sequences must be non-empty"),
        (request(stream="yes"), "stream: Input should be a valid boolean"),
        (request(colour="red"), "colour: Extra inputs are not permitted"),
        (request(**{"\ud800": 1}), "\\ud800: Extra inputs are not permitted"),
        (request(metadata={"user": "u"}), "metadata.user: Extra inputs are not permitted"),
        (request(cache_control={"type": "x"}), None),
    ],
)
def test_bad_requests_are_refused_naming_the_field(body: object, message: str | None) -> None:
    """Each refusal is one sentence with the path of the field."""
    said = refusal(body)
    assert message is None or said == message
    said.encode()


@pytest.mark.parametrize(
    "field",
    [
        {"mcp_servers": [{"type": "url"}]},
        {"container": "c"},
        {"context_management": {"edits": [{}]}},
        {"speed": "fast"},
    ],
)
def test_fields_that_are_not_built_yet_are_refused_by_name(field: dict[str, object]) -> None:
    """Nothing that changes the reply is silently ignored."""
    (name,) = field
    assert refusal(request(**field)) == f"{name}: not supported yet"


def test_neutral_values_of_fields_not_built_yet_pass() -> None:
    """Null, empty and switched-off values ask for nothing."""
    parse(
        request(
            tools=[],
            tool_choice={"type": "auto"},
            thinking={"type": "disabled"},
            output_config={"format": None},
            mcp_servers=[],
            context_management={"edits": []},
            speed="standard",
            thread=None,
            container=None,
        ),
        NEW,
    )


@pytest.mark.parametrize("kind", ["image", "server_tool_use", "container_upload", "compaction"])
def test_blocks_that_no_text_model_reads_are_refused_by_type(kind: str) -> None:
    """A block that cannot be shown as text is named."""
    body = request(messages=[{"role": "user", "content": [{"type": kind}]}])
    assert (
        refusal(body) == f"messages.0.content.0: content blocks of type '{kind}' are not supported"
    )


def test_what_agents_say_of_themselves_and_of_keeping_asks_for_nothing() -> None:
    """A billing note is no part of the prompt; edits of the context that keep all of it pass."""
    keeping = {"type": "clear_thinking_20251015", "keep": "all"}
    read = parse(
        request(
            system=[
                {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=2"},
                {"type": "text", "text": "Be kind."},
            ],
            context_management={"edits": [keeping]},
        ),
        NEW,
    )
    assert [turn.text for turn in read.messages] == ["Be kind.", "hi"]
    fewer = {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}
    for edits in ([fewer], [keeping, {}], "all"):
        said = refusal(request(context_management={"edits": edits}))
        assert said == "context_management: not supported yet"


def test_thread_gets_the_answer_that_makes_clients_fall_back() -> None:
    """The tool runner sends whole histories once it reads this code; counting lets it pass."""
    with pytest.raises(InvalidRequest) as refused:
        parse(request(thread={"type": "create"}), NEW)
    assert invalid_body(refused.value, "req_1") == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "thread is not supported",
            "details": {"error_code": "thread_unsupported_request", "unsupported": []},
        },
        "request_id": "req_1",
    }
    assert parse_count(counted(thread={"type": "create"}), NEW).max_tokens is None


@pytest.mark.parametrize("field", ["temperature", "top_p", "top_k"])
def test_sampling_fields_belong_to_the_older_version(field: str) -> None:
    """2026-10-21 refuses them even at their defaults; 2023-06-01 takes them within bounds."""
    assert refusal(request(**{field: 1}), NEW) == f"{field}: Extra inputs are not permitted"
    parse(request(**{field: 1}), OLD)
    assert "must be greater" in refusal(request(**{field: -1}), OLD)
    assert "valid" in refusal(request(**{field: "1"}), OLD)


def test_not_a_number_and_infinity_are_no_temperatures() -> None:
    """What JSON parsers let through as NaN or Infinity is refused."""
    for value in (float("nan"), float("inf"), 10**400, True):
        assert refusal(request(temperature=value), OLD).startswith("temperature: ")


def test_nucleus_of_nothing_is_the_likeliest_token() -> None:
    """top_p 0 is legal here and means greedy; engines want it above 0."""
    read = parse(request(top_p=0), OLD)
    assert (read.top_p, read.top_k) == (1.0, 1)


def counted(**more: object) -> dict[str, object]:
    """Return a body for count_tokens."""
    return {key: request(**more)[key] for key in ("model", "messages", *more)}


def test_counting_reads_the_same_prompt_as_answering() -> None:
    """count_tokens reads the same messages from a body without what draws a reply."""
    for version in VERSIONS:
        assert parse_count(counted(), version).messages == parse(request(), version).messages
        assert parse_count(counted(), version).max_tokens is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("max_tokens", 16), ("max_tokens", None), ("stream", False), ("temperature", 1.0)],
        *[("top_p", 1.0), ("top_k", 0), ("stop_sequences", []), ("metadata", {}), ("seed", 1)],
        *[("service_tier", "auto"), ("min_tokens", 0), ("ignore_eos", False), ("unknown", None)],
        *[("container", None), ("diagnostics", None), ("fallbacks", [])],
    ],
)
def test_counting_refuses_what_has_no_part_in_a_prompt(field: str, value: object) -> None:
    """As the hosted API does: even at values that ask for nothing, in both versions."""
    for version in VERSIONS:
        with pytest.raises(InvalidRequest) as refused:
            parse_count(counted(**{field: value}), version)
        assert refused.value.message == f"{field}: Extra inputs are not permitted"


@pytest.mark.parametrize(
    "more",
    [
        {"system": "Be brief.", "cache_control": {"type": "ephemeral"}},
        {"tools": [{"name": "f", "input_schema": {"type": "object"}}]},
        {"thinking": {"type": "enabled", "budget_tokens": 4_096}},
        {"output_config": {"effort": "low"}},
        {"speed": "standard", "mcp_servers": [], "context_management": {"edits": []}},
        {"compaction": None, "billing_policy": None, "output_format": None, "tool_choice": None},
    ],
    ids=str,
)
def test_counting_takes_what_the_hosted_api_counts(more: dict[str, object]) -> None:
    """Members that it knows have their effect, or ask for nothing and pass."""
    assert parse_count(counted(**more), NEW).messages


def test_versions_are_checked() -> None:
    """The two published versions pass; none and any other are refused."""
    assert [check_version(version) for version in VERSIONS] == [OLD, NEW]
    for header, said in ((None, "header is required"), ("2020-01-01", "is unknown")):
        with pytest.raises(InvalidRequest, match=f"anthropic-version: .*{said}"):
            check_version(header)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (418, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_statuses_have_their_error_types(status: int, kind: str) -> None:
    """Every status, known or not, has an error type."""
    assert error_body(status, "m", "req_1") == {
        "type": "error",
        "error": {"type": kind, "message": "m"},
        "request_id": "req_1",
    }


def test_long_client_text_is_cut_in_messages() -> None:
    """An error never sends a client's megabytes back."""
    assert len(refusal(request(**{"x" * 1_000_000: 1}))) < 300
