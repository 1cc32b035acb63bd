"""Whether alternatives of a `oneOf` exclude each other, so that any one of them may be followed.

A proof or nothing: False means "not proven". Works on rewritten schemas (`rewriting.py`). Pure.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations

__all__ = ["exclusive"]

Schema = object
"""A JSON object or a boolean."""

_TYPES = frozenset({"null", "boolean", "number", "string", "array", "object"})
_DEPTH_MAX = 8


def exclusive(alternatives: Sequence[Schema], definitions: Mapping[str, Schema]) -> bool:
    """Tell whether no value made to follow one alternative can follow another."""
    return all(
        _never_both(made, other, definitions, 0) for made, other in permutations(alternatives, 2)
    )


def _never_both(made: Schema, other: Schema, definitions: Mapping[str, Schema], depth: int) -> bool:
    """Tell whether a value that follows `made` to the letter never follows `other`."""
    made, other = _resolved(made, definitions), _resolved(other, definitions)
    if made is False or other is False:
        return True
    if not isinstance(made, dict) or not isinstance(other, dict) or depth > _DEPTH_MAX:
        return False
    deeper = depth + 1
    for keyword in ("anyOf", "oneOf"):
        if keyword in made:
            return all(_never_both(a, other, definitions, deeper) for a in _list(made[keyword]))
        if keyword in other:
            return all(_never_both(made, a, definitions, deeper) for a in _list(other[keyword]))
    if not _types(made) & _types(other):
        return True
    values, others = _values(made), _values(other)
    if values is not None and others is not None:
        return not any(value in others for value in values)
    if _types(made) == _types(other) == {"number"}:
        return _below(made, other) or _below(other, made)
    if _types(made) == _types(other) == {"object"}:
        return _objects_differ(made, other, definitions, deeper)
    return False


def _objects_differ(
    made: Mapping[str, Schema],
    other: Mapping[str, Schema],
    definitions: Mapping[str, Schema],
    depth: int,
) -> bool:
    had, had_other = _properties(made), _properties(other)
    closed = made.get("additionalProperties") is False and "patternProperties" not in made
    needed, needed_other = set(_list(made.get("required"))), set(_list(other.get("required")))
    if closed and any(name not in had for name in needed_other):
        return True
    return any(
        name in had
        and name in had_other
        and _never_both(had[str(name)], had_other[str(name)], definitions, depth)
        for name in needed | needed_other
    )


def _resolved(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    for _ in range(_DEPTH_MAX):
        if not isinstance(schema, dict) or set(schema) != {"$ref"}:
            break
        schema = definitions.get(str(schema["$ref"]), True)
    return schema


def _types(schema: Mapping[str, Schema]) -> frozenset[str]:
    """Return the JSON types that a value may have; whole numbers are numbers."""
    named = schema.get("type")
    names = [named] if isinstance(named, str) else _list(named)
    types = frozenset("number" if name == "integer" else str(name) for name in names) or _TYPES
    values = _values(schema)
    if values is not None:
        types &= {_type_of(value) for value in values}
    return types


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _values(schema: Mapping[str, Schema]) -> list[tuple[str, object]] | None:
    """Return the only values that a schema allows, with their types (1 is not true)."""
    if "const" in schema:
        values = [schema["const"]]
    elif "enum" in schema:
        values = _list(schema["enum"])
    else:
        return None
    return [(_type_of(value), value) for value in values]


def _below(low: Mapping[str, Schema], high: Mapping[str, Schema]) -> bool:
    """Tell whether every number of one schema is less than every number of another."""
    most, least = low.get("maximum"), high.get("minimum")
    under, over = low.get("exclusiveMaximum"), high.get("exclusiveMinimum")
    for upper, strict_upper in ((most, False), (under, True)):
        for lower, strict_lower in ((least, False), (over, True)):
            if _number(upper) and _number(lower):
                if upper < lower:  # type: ignore[operator]  # both are numbers
                    return True
                if upper == lower and (strict_upper or strict_lower):
                    return True
    return False


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _properties(schema: Mapping[str, Schema]) -> Mapping[str, Schema]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
