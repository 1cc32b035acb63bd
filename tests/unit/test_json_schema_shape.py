"""What is a JSON schema, whether it can be enforced or not: the shape of each keyword's value."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas import limits
from schemas.dialects import anthropic, openai, responses
from schemas.dialects.canonical import CanonicalRequest, InvalidRequest
from schemas.json_schema import check_shape

STORED = Path(__file__).parents[1] / "schemas"
SAID = [{"role": "user", "content": "hi"}]


def check(schema: dict[str, Any]) -> None:
    """Check a schema at the path `s`."""
    check_shape(schema, "s", len(json.dumps(schema)))


WRONG = [
    ({"properties": 5}, "s.properties: expected an object"),
    ({"properties": None}, "s.properties: expected an object"),
    ({"properties": {"a": 5}}, "s.properties.a: expected an object or a boolean"),
    ({"properties": {"a": {}, "b": None}}, "s.properties.b: expected an object or a boolean"),
    ({"required": "x"}, "s.required: expected a list"),
    ({"required": ["a", 5]}, "s.required: expected a string"),
    (
        {"properties": {"a": {"type": "frob"}}},
        "s.properties.a.type: expected 'null', 'boolean', 'integer', 'number', 'string', "
        "'array' or 'object'",
    ),
    ({"items": {"type": 5}}, "s.items.type: expected a string or a list"),
    ({"items": {"type": []}}, "s.items.type: expected a list of length >= 1"),
    ({"items": 5}, "s.items: expected a boolean or an object or a list"),
    ({"items": [{}, {"enum": {}}]}, "s.items.1.enum: expected a list"),
    ({"anyOf": []}, "s.anyOf: expected a list of length >= 1"),
    ({"anyOf": {}}, "s.anyOf: expected a list"),
    ({"allOf": [{}, {"not": {"pattern": 1}}]}, "s.allOf.1.not.pattern: expected a string"),
    ({"$defs": {"A": {"oneOf": [7]}}}, "s.$defs.A.oneOf.0: expected an object or a boolean"),
    ({"if": {"minLength": -1}}, "s.if.minLength: expected a number >= 0.0"),
    ({"maxItems": 1.5}, "s.maxItems: expected a number that's a multiple of 1.0"),
    ({"maxItems": True}, "s.maxItems: expected a number"),
    ({"minimum": "1"}, "s.minimum: expected a number"),
    ({"exclusiveMinimum": "1"}, "s.exclusiveMinimum: expected a boolean or a number"),
    ({"multipleOf": 0}, "s.multipleOf: expected a number > 0.0"),
    ({"uniqueItems": 1}, "s.uniqueItems: expected a boolean"),
    ({"dependentRequired": {"a": "b"}}, "s.dependentRequired: expected a list"),
    ({"dependencies": {"a": {"items": 1}}}, "s.dependencies.a.items: expected"),
    ({"dependencies": {"a": [1]}}, "s.dependencies: expected a string"),
    ({"$ref": {}}, "s.$ref: expected a string"),
    ({"title": 1}, "s.title: expected a string"),
    ({"x": 1, "properties": {"description": {"description": []}}}, "s.properties.description.desc"),
]


@pytest.mark.parametrize(("schema", "message"), WRONG, ids=[case[1] for case in WRONG])
def test_what_is_no_schema_is_refused_at_its_place(schema: dict[str, Any], message: str) -> None:
    """The message names the innermost value that is not of its keyword's kind."""
    with pytest.raises(InvalidRequest) as caught:
        check(schema)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": {"a": True, "b": False, "type": {"type": "string"}}},
        {"properties": {}, "required": [], "enum": [], "default": None, "const": {"type": 5}},
        {"enum": [1, None, {"type": 5}], "examples": [{"properties": 5}], "default": {"items": 1}},
        {"nullable": True, "example": {"a": 1}, "x-order": 5, "optional": "yes", "format": "int64"},
        {"type": ["string", "null"], "minLength": 5.0, "maximum": 10**400, "minItems": 2**70},
        {"items": [{"type": "string"}], "additionalItems": False},  # drafts 4 to 2019-09
        {"minimum": 3, "exclusiveMinimum": True},  # draft 4
        {"exclusiveMinimum": 3.5, "multipleOf": 0.01, "uniqueItems": True},
        {"definitions": {"A": {}}, "dependencies": {"a": ["b"], "c": {"required": ["d"]}}},
        {"$schema": "https://example.com/own", "$id": "x", "$ref": "#/nowhere", "$comment": ""},
        {"not": {}, "if": {}, "then": False, "contains": {}, "unevaluatedProperties": False},
        {"dependentRequired": {"a": []}, "patternProperties": {"^(?=a)": {"pattern": "("}}},
    ],
    ids=str,
)
def test_a_schema_of_any_draft_passes_whether_it_can_be_enforced_or_not(
    schema: dict[str, Any],
) -> None:
    """Nothing is asked of unknown keywords, constants, references and patterns."""
    check(schema)


def test_stored_schemas_pass() -> None:
    """All schemas that other tests enforce, or refuse as not enforceable, are schemas."""
    lines = [line for path in STORED.glob("*.jsonl") for line in path.read_text().splitlines()]
    loaded = [json.loads(line) for line in lines if line.startswith("{")]
    assert len(loaded) > 100
    for schema in loaded:
        check(schema)


SCHEMA = {"type": "object", "properties": {"a": {"type": "frob"}}}


@pytest.mark.parametrize("strict", [None, False, True])
@pytest.mark.parametrize(
    ("parse", "tool", "path"),
    [
        (
            lambda body: anthropic.parse(body | {"max_tokens": 9}, "2026-10-21"),
            {"name": "f", "input_schema": SCHEMA},
            "tools.0.input_schema",
        ),
        (
            lambda body: openai.parse(body, "v1"),
            {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
            "tools.0.function.parameters",
        ),
        (
            lambda body: responses.parse(
                {"model": "m", "input": "hi", "tools": body["tools"]}, "v1"
            ),
            {"type": "function", "name": "f", "parameters": SCHEMA},
            "tools.0.parameters",
        ),
    ],
    ids=["anthropic", "openai", "responses"],
)
def test_each_dialect_refuses_a_tool_whose_schema_is_none(
    parse: Callable[[dict[str, Any]], CanonicalRequest],
    tool: dict[str, Any],
    path: str,
    strict: bool | None,
) -> None:
    """Strict or not, and before anything else is done with it."""
    holder = tool.get("function", tool)
    if strict is not None:
        holder = holder | {"strict": strict}
    tool = tool | {"function": holder} if "function" in tool else holder
    with pytest.raises(InvalidRequest) as caught:
        parse({"model": "m", "messages": SAID, "tools": [tool]})
    assert caught.value.message.startswith(f"{path}.properties.a.type: expected 'null'")


def test_a_schema_too_large_to_search_is_refused_at_its_outermost_keyword() -> None:
    """A refusal costs no more than the pass that found it, however the fault is nested."""
    schema: dict[str, Any] = dict.fromkeys(map(str, range(300_000)), 0) | {"type": 5}
    for _ in range(limits.JSON_SCHEMA_DEPTH_MAX):
        schema = {"properties": {**{f"p{at}": {} for at in range(2_000)}, "z": schema}}
    size_chars = len(json.dumps(schema))
    assert size_chars > limits.JSON_SCHEMA_BYTES_MAX
    before = time.process_time()
    with pytest.raises(InvalidRequest) as caught:
        check_shape(schema, "s", size_chars)
    assert caught.value.message.startswith("s.properties: holds what is no JSON schema")
    assert time.process_time() - before < 1
