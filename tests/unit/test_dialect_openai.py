"""OpenAI's requests: what is read, what is refused, and in which words."""

import pytest

from schemas.dialects.canonical import CanonicalMessage, CanonicalRequest, InvalidRequest
from schemas.dialects.openai import error_body, invalid_body, parse
from schemas.requests import Dialect

HELLO: list[object] = [{"role": "user", "content": "hi"}]


def request(**changes: object) -> dict[str, object]:
    """Return a minimal body with changes."""
    body: dict[str, object] = {"model": "tiny", "messages": HELLO}
    return body | changes


def refusal(body: object) -> InvalidRequest:
    """Return what refuses a body."""
    with pytest.raises(InvalidRequest) as refused:
        parse(body, "v1")
    assert refused.value.status == 400
    return refused.value


def test_minimal_request_gets_the_documented_defaults() -> None:
    """Only model and messages are required; max_tokens is left open."""
    assert parse(request(), "v1") == CanonicalRequest(
        dialect=Dialect.OPENAI,
        dialect_version="v1",
        model="tiny",
        messages=(CanonicalMessage(role="user", text="hi"),),
        max_tokens=None,
    )


def test_all_built_fields_are_read() -> None:
    """Sampling, stops, extensions and stream options reach the canonical request."""
    read = parse(
        request(
            max_completion_tokens=8,
            max_tokens=8,
            stop="x",
            seed=5,
            stream=True,
            stream_options={"include_usage": True, "include_obfuscation": False},
            temperature=2,
            top_p=0.1,
            presence_penalty=-2,
            frequency_penalty=2,
            top_k=-1,
            min_p=0.1,
            repetition_penalty=1.1,
            ignore_eos=True,
            min_tokens=2,
            user="u",
        ),
        "v1",
    )
    assert (read.max_tokens, read.stop, read.seed) == (8, ("x",), 5)
    assert read.stream and read.include_usage and read.ignore_eos
    assert (read.temperature, read.top_p, read.top_k, read.min_p) == (2.0, 0.1, 0, 0.1)
    assert (read.presence_penalty, read.frequency_penalty) == (-2.0, 2.0)
    assert (read.repetition_penalty, read.min_tokens, read.user) == (1.1, 2, "u")


def test_messages_of_all_text_roles_are_read() -> None:
    """developer is system, parts are joined, and a reply's own null members may come back."""
    reply = {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None}
    messages = [
        {"role": "developer", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "b"}]},
        reply,
        {"role": "user", "content": "", "name": "someone"},
        {"role": "assistant", "content": "e"},
    ]
    read = parse(request(messages=messages), "v1").messages
    assert [(turn.role, turn.text, turn.continued) for turn in read] == [
        ("system", "a", False),
        ("user", "b\nb", False),
        ("assistant", "c", False),
        ("user", "", False),
        ("assistant", "e", False),
    ]


def test_fields_without_effect_and_neutral_values_pass() -> None:
    """Labels are accepted, and so is what asks for nothing."""
    parse(
        request(
            metadata={"a": "b"},
            user=None,
            service_tier="auto",
            safety_identifier="s",
            prompt_cache_key="k",
            prompt_cache_retention="24h",
            parallel_tool_calls=True,
            n=1,
            logprobs=False,
            top_logprobs=None,
            logit_bias={},
            response_format={"type": "text"},
            tools=[],
            tool_choice="none",
            modalities=["text"],
            store=False,
            max_tokens=None,
            stream_options=None,
        ),
        "v1",
    )


@pytest.mark.parametrize(
    "field",
    [
        {"modalities": ["text", "audio"]},
        {"prediction": {}},
        {"web_search_options": {}},
        {"store": True},
    ],
)
def test_fields_that_are_not_built_yet_are_refused_by_name(field: dict[str, object]) -> None:
    """Nothing that changes the reply is silently ignored."""
    (name,) = field
    refused = refusal(request(**field))
    assert refused.message == f"{name}: not supported yet"
    assert refused.path == name


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ("hi", ""),
        ({"messages": HELLO}, "model"),
        ({"model": "m"}, "messages"),
        (request(messages=[]), "messages"),
        (request(messages=[{"role": "user", "content": None}]), "messages.0.content"),
        (request(messages=[{"role": "user", "content": []}]), "messages.0.content"),
        (request(messages=[{"role": "critic", "content": "a"}]), "messages.0.role"),
        (request(messages=[{"role": "king", "content": "a"}]), "messages.0.role"),
        (request(messages=[{"role": ["user"], "content": "a"}]), "messages.0.role"),
        (
            request(messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
            "messages.0.content.0",
        ),
        (
            request(messages=[{"role": "assistant", "content": "a", "tool_calls": [{}]}]),
            "messages.0.tool_calls.0.function",
        ),
        (request(messages=[{"role": "user", "content": "a", "x": 1}]), "messages.0.x"),
        (request(max_tokens=0), "max_tokens"),
        (request(max_tokens=1, max_completion_tokens=2), "max_tokens"),
        (request(temperature=2.1), "temperature"),
        (request(stop=["a"] * 5), "stop"),
        (request(stop=3), "stop"),
        (request(stop=""), "stop.0"),
        (request(stream_options={"include_usage": True}), "stream_options"),
        (request(stream=True, stream_options={"x": True}), "stream_options.x"),
        (request(metadata={"a": 1}), "metadata.a"),
        (request(metadata={str(i): "" for i in range(17)}), "metadata"),
        (request(user="\udfff"), "user"),
    ],
)
def test_bad_requests_are_refused_naming_the_field(body: object, path: str) -> None:
    """Each refusal carries the field as `param`."""
    refused = refusal(body)
    assert refused.path == path
    error = invalid_body(refused, "req_1")["error"]
    assert isinstance(error, dict)
    assert error["param"] == (path or None)
    assert error["type"] == "invalid_request_error"


def test_unknown_fields_are_refused_in_openai_words() -> None:
    """The message names the argument, as the hosted API does."""
    assert invalid_body(refusal(request(colour=1)), "req_1") == {
        "error": {
            "message": "Unrecognized request argument supplied: colour",
            "type": "invalid_request_error",
            "param": "colour",
            "code": "unknown_parameter",
        }
    }


def test_statuses_have_their_types_and_codes() -> None:
    """Every status, known or not, has an error type; a given code wins."""
    assert error_body(401, "m", "r")["error"] == {
        "message": "m",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_api_key",
    }
    known = error_body(404, "m", "r", code="model_not_found", param="model")["error"]
    assert isinstance(known, dict)
    assert (known["code"], known["param"]) == ("model_not_found", "model")
    for status, kind in ((418, "invalid_request_error"), (502, "server_error")):
        error = error_body(status, "m", "r")["error"]
        assert isinstance(error, dict)
        assert error["type"] == kind
