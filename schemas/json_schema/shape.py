"""Whether what a client sends as a JSON schema is one: every known keyword has a value of its kind.

Owns no meaning: what can be enforced is for `rewriting.py` to say, and where references lead.
Keywords that JSON schema does not know may hold anything. What drafts spell in different ways
(lists as `items`, flags as exclusive bounds) is taken in each of them. msgspec does the work in one
pass; only a schema that it refuses is looked at again, to name the place.

Source: https://json-schema.org/draft/2020-12/schema, and that of drafts 4, 6, 7 and 2019-09.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal, TypeAlias, Union

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from schemas import limits
from schemas.dialects.canonical import InvalidRequest
from schemas.json_schema.values import join

__all__ = ["check_shape"]

_EXPECTED: Final = re.compile(r"Expected `([^`]*)`([^,]*)")
_EXPECTED_TYPE: Final = (
    "expected 'null', 'boolean', 'integer', 'number', 'string', 'array' or 'object'"
)
_KINDS: Final = {
    "object": "an object",
    "array": "a list",
    "str": "a string",
    "bool": "a boolean",
    "float": "a number",
}

_TypeName = Literal["null", "boolean", "integer", "number", "string", "array", "object"]
_Schema: TypeAlias = Union["_Node", bool]
_Schemas: TypeAlias = Annotated[list[_Schema], Meta(min_length=1)]
_Named: TypeAlias = dict[str, _Schema]
_Count = Annotated[float, Meta(ge=0, multiple_of=1)]  # 5.0 is a whole number there
_Number = int | float

_ONE = frozenset(
    {
        *("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if"),
        *("items", "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
    }
)
_SEVERAL = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_NAMED = frozenset(
    {
        *("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties"),
        "properties",
    }
)


class _Node(
    Struct,
    rename={
        "id_": "$id",
        "schema": "$schema",
        "ref": "$ref",
        "anchor": "$anchor",
        "dynamic_ref": "$dynamicRef",
        "dynamic_anchor": "$dynamicAnchor",
        "comment": "$comment",
        "defs": "$defs",
        "if_": "if",
        "else_": "else",
        "not_": "not",
    },
):
    """One schema that is an object."""

    id_: str | UnsetType = UNSET
    schema: str | UnsetType = UNSET
    ref: str | UnsetType = UNSET
    anchor: str | UnsetType = UNSET
    dynamic_ref: str | UnsetType = UNSET
    dynamic_anchor: str | UnsetType = UNSET
    comment: str | UnsetType = UNSET
    defs: _Named | UnsetType = UNSET
    definitions: _Named | UnsetType = UNSET

    type: _TypeName | Annotated[list[_TypeName], Meta(min_length=1)] | UnsetType = UNSET
    enum: list[object] | UnsetType = UNSET
    allOf: _Schemas | UnsetType = UNSET
    anyOf: _Schemas | UnsetType = UNSET
    oneOf: _Schemas | UnsetType = UNSET
    not_: _Schema | UnsetType = UNSET
    if_: _Schema | UnsetType = UNSET
    then: _Schema | UnsetType = UNSET
    else_: _Schema | UnsetType = UNSET

    properties: _Named | UnsetType = UNSET
    patternProperties: _Named | UnsetType = UNSET
    additionalProperties: _Schema | UnsetType = UNSET
    unevaluatedProperties: _Schema | UnsetType = UNSET
    propertyNames: _Schema | UnsetType = UNSET
    required: list[str] | UnsetType = UNSET
    minProperties: _Count | UnsetType = UNSET
    maxProperties: _Count | UnsetType = UNSET
    dependentRequired: dict[str, list[str]] | UnsetType = UNSET
    dependentSchemas: _Named | UnsetType = UNSET
    dependencies: dict[str, Union["_Node", bool, list[str]]] | UnsetType = UNSET

    items: Union["_Node", bool, list[_Schema]] | UnsetType = UNSET
    prefixItems: _Schemas | UnsetType = UNSET
    additionalItems: _Schema | UnsetType = UNSET
    unevaluatedItems: _Schema | UnsetType = UNSET
    contains: _Schema | UnsetType = UNSET
    minContains: _Count | UnsetType = UNSET
    maxContains: _Count | UnsetType = UNSET
    minItems: _Count | UnsetType = UNSET
    maxItems: _Count | UnsetType = UNSET
    uniqueItems: bool | UnsetType = UNSET

    minLength: _Count | UnsetType = UNSET
    maxLength: _Count | UnsetType = UNSET
    pattern: str | UnsetType = UNSET
    format: str | UnsetType = UNSET
    contentEncoding: str | UnsetType = UNSET
    contentMediaType: str | UnsetType = UNSET
    contentSchema: _Schema | UnsetType = UNSET
    minimum: _Number | UnsetType = UNSET
    maximum: _Number | UnsetType = UNSET
    exclusiveMinimum: _Number | bool | UnsetType = UNSET
    exclusiveMaximum: _Number | bool | UnsetType = UNSET
    multipleOf: Annotated[float, Meta(gt=0)] | UnsetType = UNSET

    title: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    examples: list[object] | UnsetType = UNSET
    deprecated: bool | UnsetType = UNSET
    readOnly: bool | UnsetType = UNSET
    writeOnly: bool | UnsetType = UNSET


_ROOT: Final = _Node | bool
_KEYWORDS: Final = _Node.__struct_encode_fields__


def check_shape(schema: dict[str, object], path: str, size_chars: int) -> None:
    """Check a schema of so many characters as JSON text.

    Raises: InvalidRequest naming the innermost value that is not of its kind; in a schema that is
    too large to be enforced, the outermost keyword that holds it.
    """
    if _fault(schema) is not None:
        _refuse(schema, path, searches=size_chars <= limits.JSON_SCHEMA_BYTES_MAX)


def _fault(schema: object) -> str | None:
    """Return what is wrong with a schema, None where nothing is."""
    try:
        msgspec.convert(schema, _ROOT)
    except msgspec.ValidationError as error:
        return str(error)
    return None


def _refuse(schema: object, path: str, *, searches: bool) -> None:
    """Raise for a schema that is known to be none."""
    if not isinstance(schema, dict):
        raise InvalidRequest(path, "expected an object or a boolean")
    for keyword in _KEYWORDS:
        fault = _fault({keyword: schema[keyword]}) if keyword in schema else None
        if fault is None:
            continue
        value = schema[keyword]
        place = join(path, keyword)
        for inner, part in _parts(keyword, value, place) if searches else ():
            if _fault(part) is not None:
                _refuse(part, inner, searches=True)
        reason, _, found_at = fault.partition(" - at `$.")
        if not searches and found_at != f"{keyword}`":
            raise InvalidRequest(place, "holds what is no JSON schema, and is too large to search")
        raise InvalidRequest(place, _said(reason))
    raise AssertionError("a schema is refused for one of its keywords")


def _parts(keyword: str, value: object, path: str) -> Iterator[tuple[str, object]]:
    """Yield what has to be a schema in the value of a keyword, with its path."""
    if isinstance(value, dict):
        if keyword in _ONE:
            yield path, value
        elif keyword in _NAMED:
            for name, part in value.items():
                if not (keyword == "dependencies" and isinstance(part, list)):
                    yield join(path, name), part
    elif isinstance(value, list) and keyword in _SEVERAL:
        for index, part in enumerate(value):
            yield join(path, index), part


def _said(reason: str) -> str:
    """Return a reason of msgspec's in the words of other refusals."""
    expected = _EXPECTED.match(reason)
    if expected is None:
        return _EXPECTED_TYPE if reason.startswith("Invalid enum") else reason.lower()
    kinds = expected[1].replace("int | float", "float").split(" | ")
    return f"expected {' or '.join(_KINDS.get(kind, kind) for kind in kinds)}{expected[2]}"
