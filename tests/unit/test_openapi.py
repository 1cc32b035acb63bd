"""The served description of the API: whole, well-formed, and about the routes that there are."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jsonschema
import pytest
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types import EmbeddingCreateParams
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming as ChatParams,
)
from openai.types.completion_create_params import (
    CompletionCreateParamsNonStreaming as CompletionParams,
)
from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming as ResponseParams,
)
from starlette.routing import Route

from gateway.app import routes_of
from gateway.errors import Overloaded, show
from gateway.openapi import OPERATIONS, openapi_document
from schemas.dialects import anthropic, completions, embeddings, fields, openai, responses
from schemas.dialects.canonical import InvalidRequest

EXTENSIONS = frozenset(
    {
        *("top_k", "min_p", "repetition_penalty", "ignore_eos", "min_tokens", "stop_token_ids"),
        *("bad_words", "structured_outputs", "guided_json", "guided_regex", "guided_choice"),
        *("guided_grammar", "chat_template_kwargs", "seed", "length_penalty", "best_of", "echo"),
        *("skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output"),
        *("use_beam_search", "prompt_logprobs", "priority", "return_token_ids"),
        *("add_special_tokens", "add_generation_prompt", "continue_final_message"),
    }
)
"""What vLLM adds to the APIs."""
REQUESTS: list[tuple[str, Callable[[object], object], frozenset[str]]] = [
    (
        "MessageRequest",
        lambda body: anthropic.parse({"max_tokens": 1, **fields.as_object(body, "")}, "2023-06-01"),
        frozenset(MessageCreateParamsNonStreaming.__annotations__) | EXTENSIONS,
    ),
    (
        "ChatCompletionRequest",
        partial(openai.parse, version="v1"),
        frozenset(ChatParams.__annotations__) | EXTENSIONS,
    ),
    (
        "CompletionRequest",
        partial(completions.parse, version="v1"),
        frozenset(CompletionParams.__annotations__) | EXTENSIONS,
    ),
    (
        "ResponseRequest",
        partial(responses.parse, version="v1"),
        frozenset(ResponseParams.__annotations__) | EXTENSIONS,
    ),
    (
        "EmbeddingRequest",
        partial(embeddings.parse, version="v1"),
        frozenset(EmbeddingCreateParams.__annotations__),
    ),
]
DOCUMENT: Any = openapi_document("1.0", "m")


def validator(name: str) -> jsonschema.Draft202012Validator:
    """Return the check of one schema of the document."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return jsonschema.Draft202012Validator(schema)


def references(node: object) -> Iterator[str]:
    """Yield every reference in the document."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield str(value)
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_every_route_is_described_and_nothing_else() -> None:
    """Methods and paths are those of the application; the doubled prefix is a server of each."""
    described = {
        (method.upper(), path)
        for path, item in DOCUMENT["paths"].items()
        for method in item
        if method != "servers"
    }
    assert described == {(operation.method, operation.path) for operation in OPERATIONS}
    served = set()
    for route in routes_of():
        assert isinstance(route, Route)
        path = re.sub(r":path}", "}", route.path)
        for method in route.methods or ():
            if method != "HEAD" or path == "/":  # elsewhere it is GET without a body
                served.add((method, path))
    plain = {(method, path) for method, path in served if not path.startswith("/v1/v1/")}
    assert plain == described
    doubled = {(method, path[3:]) for method, path in served - plain}
    assert doubled == {(method, path) for method, path in plain if path.startswith("/v1/")}
    for path, item in DOCUMENT["paths"].items():
        assert ("/v1" in {server["url"] for server in item.get("servers", ())}) == (
            path.startswith("/v1/")
        )


def test_every_schema_is_one_and_is_used() -> None:
    """All schemas are valid, every reference leads to one, and none lies about unused."""
    schemas = DOCUMENT["components"]["schemas"]
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    named = {found.rpartition("/")[2] for found in references(DOCUMENT)}
    assert named == set(schemas) | set(DOCUMENT["components"]["headers"])
    names = [operation.name for operation in OPERATIONS]
    assert len(names) == len(set(names))
    json.dumps(DOCUMENT)


@pytest.mark.parametrize(("name", "parse", "asked"), REQUESTS)
def test_requests_have_the_members_that_are_read(
    name: str, parse: Callable[[object], object], asked: frozenset[str]
) -> None:
    """A member is described if and only if its parser knows it, of all that clients may send."""
    described = set(DOCUMENT["components"]["schemas"][name]["properties"])
    known = {member for member in described | asked if is_known(parse, member)}
    assert described == known


def is_known(parse: Callable[[object], object], member: str) -> bool:
    """Tell whether a parser reads a member at all."""
    try:
        parse({member: None})
    except InvalidRequest as error:
        unknown = ("Extra inputs are not permitted", "Unrecognized request argument supplied")
        return not (error.path == member and any(text in error.message for text in unknown))
    return True


def test_errors_fit_their_schemas() -> None:
    """What the dialects make of errors is what the document says."""
    shown = show(Overloaded("Overloaded: busy"))
    invalid = InvalidRequest("messages.0", "Field required", code="x", details={"a": 1})
    for body in (
        anthropic.error_body(shown.status, shown.message, "req_1"),
        anthropic.invalid_body(invalid, "req_1"),
    ):
        validator("AnthropicError").validate(body)
    for other in (
        openai.error_body(shown.status, shown.message, "req_1", code=shown.code),
        openai.invalid_body(invalid, "req_1"),
    ):
        validator("OpenAiError").validate(other)


def test_streams_fit_their_schema_as_text_and_event_by_event() -> None:
    """Tools differ in what they hold a stream's schema against."""
    found = 0
    for item in DOCUMENT["paths"].values():
        for method in item.keys() & {"get", "post"}:
            for response in item[method]["responses"].values():
                if (media := response.get("content", {}).get("text/event-stream")) is not None:
                    found += 1
                    for seen in ("data: {}\n\n", {"event": "ping", "id": "1-1", "data": "{}"}):
                        jsonschema.validate(seen, media["schema"])
    assert found >= 8
