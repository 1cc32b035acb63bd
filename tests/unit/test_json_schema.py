"""JSON schemas: what is refused by name, and into what the rest is rewritten."""

from typing import Any

import pytest

from schemas import limits
from schemas.dialects.canonical import InvalidRequest
from schemas.json_schema import enforceable

AN_OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def refused(schema: Any) -> InvalidRequest:
    """Return the error of a schema at the path `s`."""
    with pytest.raises(InvalidRequest) as caught:
        enforceable(schema, "s")
    return caught.value


def nested(depth: int) -> dict[str, Any]:
    """Return a schema of lists in lists."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"not": {"type": "string"}}, "s.not"),
        ({"properties": {"a": {"if": {}, "then": {"const": 1}}}}, "s.properties.a.if"),
        ({"items": {"contains": {"const": 1}}}, "s.items.contains"),
        ({"type": "array", "uniqueItems": True}, "s.uniqueItems"),
        ({"dependentRequired": {"a": ["b"]}}, "s.dependentRequired"),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, "s.dependentSchemas"),
        ({"dependencies": {"a": ["b"]}}, "s.dependencies"),
        ({"anyOf": [{}, {"$dynamicRef": "#x"}]}, "s.anyOf.1.$dynamicRef"),
        ({"allOf": [{}], "unevaluatedProperties": False}, "s.unevaluatedProperties"),
        ({"properties": {"a": {}}, "propertyNames": {"pattern": "b"}}, "s.propertyNames"),
        ({"minProperties": 2}, "s.minProperties"),
        ({"type": "integer", "maximum": -1, "multipleOf": 5}, "s.multipleOf"),
        ({"type": "string", "format": "regex"}, "s.format"),
        ({"type": "string", "pattern": "[a--z]"}, "s.pattern"),
        ({"properties": {"a": {"$id": "x"}}}, "s.properties.a.$id"),
        ({"$ref": "https://example.com/other"}, "s.$ref"),
        ({"$ref": "#/$defs/missing"}, "s.$ref"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"not": {}}}}, "s.$defs.A.not"),
        ({"oneOf": [{"type": "string"}, {"minLength": 2}]}, "s.oneOf"),
        ({"type": "text"}, "s.type"),
        ({"type": []}, "s.type"),
        ({"enum": []}, "s.enum"),
        ({"enum": [2**53 + 1]}, "s.enum.0"),
        ({"const": {"a": float("inf")}}, "s.const.a"),
        ({"const": "\ud800"}, "s.const"),
        ({"required": True}, "s.required"),
        ({"properties": []}, "s.properties"),
        ({"properties": {"a": 1}}, "s.properties.a"),
        ({"minimum": "1"}, "s.minimum"),
        ({"minimum": 2**60}, "s.minimum"),
        ({"multipleOf": 0}, "s.multipleOf"),
        ({"minLength": -1}, "s.minLength"),
        ({"maxItems": 1.5}, "s.maxItems"),
        ({"maxItems": limits.JSON_SCHEMA_ITEMS_MAX + 1}, "s.maxItems"),
        ({"pattern": "a" * (limits.JSON_SCHEMA_STRING_CHARS_MAX + 1)}, "s.pattern"),
        ({"enum": list(range(limits.JSON_SCHEMA_CONSTANTS_MAX + 1))}, "s.enum"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_path(schema: Any, path: str) -> None:
    """The error names the place of the keyword, and the keyword where it is unknown to us."""
    assert refused(schema).path == path


def test_a_refused_keyword_is_named_in_words() -> None:
    """The message holds path and keyword, as the client sees it."""
    expected = "s.not: the JSON schema keyword 'not' is not supported"
    assert refused({"not": {"type": "null"}}).message == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    ],
)
def test_references_in_a_circle_with_nothing_in_between_are_refused(schema: Any) -> None:
    """A schema that is itself, at once, would have no end."""
    assert "$ref" in refused(schema).message


def test_bounds_of_size_are_kept() -> None:
    """Too many properties and too deep a nesting are refused."""
    many: dict[str, Any] = {
        f"p{number}": {} for number in range(limits.JSON_SCHEMA_PROPERTIES_MAX + 1)
    }
    assert refused({"properties": many}).path == "s.properties"
    assert enforceable(nested(limits.JSON_SCHEMA_DEPTH_MAX), "s")
    assert "nest" in refused(nested(limits.JSON_SCHEMA_DEPTH_MAX + 1)).message


def test_annotations_and_foreign_members_are_dropped() -> None:
    """What does not constrain passes without effect, the engine's own extension too."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "x",
        "title": "t",
        "description": "d",
        "examples": [1],
        "deprecated": True,
        "readOnly": False,
        "x-guidance": {"lenient": True},
        "nullable": True,
        "default": 3,
        "type": "integer",
    }
    assert enforceable(schema, "s") == {"type": "integer"}


@pytest.mark.parametrize(
    "schema",
    [
        {"uniqueItems": False},
        {"uniqueItems": True, "maxItems": 1},
        {"if": {"const": 1}},
        {"dependencies": {}},
        {"unevaluatedItems": True},
        {"minContains": 0, "contains": {}},
        {"maxLength": 10**12},
    ],
)
def test_keywords_that_ask_for_nothing_pass(schema: Any) -> None:
    """A keyword whose value changes nothing is no reason to refuse."""
    made = enforceable(schema, "s")
    assert isinstance(made, dict) and set(made) <= {"maxItems"}


def test_objects_get_no_properties_that_were_not_spoken_of() -> None:
    """Absent `additionalProperties` count as false, also for required names without a schema."""
    assert enforceable(AN_OBJECT, "s") == {**AN_OBJECT, "additionalProperties": False}
    assert enforceable({"properties": {}, "required": ["b"]}, "s") == {
        "properties": {"b": True},
        "required": ["b"],
        "additionalProperties": False,
    }
    said = {"properties": {"a": {}}, "additionalProperties": {"type": "string"}}
    assert enforceable(said, "s") == said


def test_objects_put_together_from_parts_stay_open() -> None:
    """No part of an `allOf` closes what another part names."""
    parts = [AN_OBJECT, {"type": "object", "properties": {"b": {"type": "string"}}}]
    assert enforceable({"allOf": parts}, "s") == {"allOf": parts}


def test_references_become_definitions_of_our_own() -> None:
    """Pointers anywhere, escapes, anchors and the document's own id all lead to `$defs`."""
    schema = {
        "$id": "https://example.com/root",
        "components": {"schemas": {"a/b": {"type": "integer"}}},
        "$defs": {"named": {"$anchor": "here", "type": "string"}, "unused": {"not": {}}},
        "properties": {
            "x": {"$ref": "#/components/schemas/a~1b"},
            "y": {"$ref": "#here"},
            "z": {"$ref": "https://example.com/root#/$defs/named"},
            "self": {"$ref": "#"},
        },
    }
    made = enforceable(schema, "s")
    assert isinstance(made, dict)
    properties, definitions = made["properties"], made["$defs"]
    assert isinstance(properties, dict) and isinstance(definitions, dict)
    found = {
        name: definitions[reference["$ref"].removeprefix("#/$defs/")]
        for name, reference in properties.items()
        if name != "self"
    }
    assert found == {"x": {"type": "integer"}, "y": {"type": "string"}, "z": {"type": "string"}}
    assert properties["self"] == {"$ref": "#"}


def test_older_drafts_are_understood() -> None:
    """Definitions, tuples as `items`, and boolean exclusive bounds of older drafts are kept."""
    schema = {
        "items": [{"$ref": "#/definitions/n"}],
        "additionalItems": False,
        "definitions": {"n": {"minimum": 0, "exclusiveMinimum": True}},
    }
    assert enforceable(schema, "s") == {
        "items": [{"$ref": "#/$defs/n"}],
        "additionalItems": False,
        "$defs": {"n": {"minimum": 0, "exclusiveMinimum": 0}},
    }


def test_bounds_that_are_no_doubles_are_tightened() -> None:
    """A 64-bit bound becomes the next double inside, so that nothing beyond it is written."""
    made = enforceable({"minimum": -(2**63), "maximum": 2**63 - 1}, "s")
    assert isinstance(made, dict)
    assert float(made["maximum"]) == made["maximum"] <= 2**63 - 1  # type: ignore[arg-type, operator]  # numbers
    assert float(made["minimum"]) == made["minimum"] >= -(2**63)  # type: ignore[arg-type, operator]  # likewise


@pytest.mark.parametrize(
    "alternatives",
    [
        [{"type": "string"}, {"type": ["integer", "null"]}],
        [{"const": 1}, {"const": True}],
        [{"enum": ["a", "b"]}, {"enum": ["c"]}],
        [{"type": "number", "maximum": 0}, {"type": "number", "exclusiveMinimum": 0}],
        [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        [
            {"type": "object", "properties": {"a": {}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {}}, "required": ["b"]},
        ],
    ],
)
def test_alternatives_that_exclude_each_other_are_enforced(alternatives: Any) -> None:
    """A `oneOf` whose alternatives provably exclude each other becomes an `anyOf`."""
    definitions = {
        kind: {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}
        for kind in ("cat", "dog")
    }
    made = enforceable({"oneOf": alternatives, "$defs": definitions}, "s")
    assert isinstance(made, dict) and "oneOf" not in made and "anyOf" in made


@pytest.mark.parametrize(
    "alternatives",
    [
        [{"type": "integer"}, {"type": "number"}],
        [{"enum": ["a", "b"]}, {"enum": ["b"]}],
        [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 5}],
        [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}],
        [{"type": "string", "minLength": 3}, {"type": "string", "maxLength": 2}],
    ],
)
def test_alternatives_without_a_proof_are_refused(alternatives: Any) -> None:
    """Where two alternatives might hold at once, `oneOf` is refused by name."""
    assert refused({"oneOf": alternatives}).path == "s.oneOf"


@pytest.mark.parametrize(
    ("pattern", "read"),
    [
        ("^[a-z]+$", "^[a-z]+$"),
        ("^a.b\\.c$", r"^a[^\n\r\u2028\u2029]b\.c$"),
        ("[.[&~]", r"[.\[\&\~]"),
        ("[a\\]b.]", r"[a\]b.]"),
        ("[[:alpha:]]", r"[\[:alpha:]]"),
        ("\\", "\\"),
    ],
)
def test_patterns_mean_to_the_engine_what_they_mean_to_validators(pattern: str, read: str) -> None:
    """Dots and characters in classes are rewritten where Rust reads them otherwise."""
    assert enforceable({"pattern": pattern}, "s") == {"pattern": read}


def test_less_than_nothing_is_never_minus_zero() -> None:
    """A bound that excludes 0 becomes one that the engine keeps."""
    assert enforceable({"exclusiveMaximum": 0}, "s") == {"maximum": -1e-6}
    assert enforceable({"exclusiveMaximum": 0, "maximum": -3}, "s") == {"maximum": -3}


def test_rules_about_names_become_patterns() -> None:
    """`propertyNames` of a map is enforced as the pattern of its properties."""
    made = enforceable({"propertyNames": {"pattern": "^x"}, "additionalProperties": {}}, "s")
    assert made == {"patternProperties": {"^x": {}}, "additionalProperties": False}
