"""Single keywords that bound numbers, texts, lists and objects: each into what the engine keeps.

Takes the schema as the client wrote it and the one that is being made of it. Pure; all raise
InvalidRequest with the keyword's path. Called by `rewriting.py`.
"""

from collections.abc import Mapping

from schemas import limits
from schemas.dialects.canonical import InvalidRequest
from schemas.json_schema import formats
from schemas.json_schema.patterns import engine_pattern
from schemas.json_schema.values import (
    as_count,
    as_maximum,
    as_minimum,
    as_number,
    as_text,
    join,
)

__all__ = [
    "IN_PLACE",
    "Node",
    "Rewritten",
    "all_evaluated",
    "name_pattern",
    "settle_bounds",
    "take_bound",
]

Node = dict[str, object]
Rewritten = Node | bool

_BELOW_0 = -1e-6
IN_PLACE = ("$ref", "allOf", "anyOf", "oneOf")
"""Keywords whose schemas are about the same value."""
_PLACES_MAX = 10_000_000
"""More items, properties or characters than any reply can hold (limits.REPLY_TOKENS_MAX tokens of
limits.PROMPT_BYTES_PER_TOKEN_MAX bytes): an upper bound beyond says nothing."""


def take_bound(
    keyword: str, value: object, node: Mapping[str, object], made: Node, path: str
) -> None:
    """Take over a bound of numbers, strings, arrays or objects; anything else is dropped."""
    match keyword:
        case "minimum":
            made[keyword] = as_minimum(value, path)
        case "maximum":
            made[keyword] = as_maximum(value, path)
        case "exclusiveMinimum" | "exclusiveMaximum":
            _exclusive_bound(keyword, value, node, made, path)
        case "multipleOf":
            _multiple(value, node, made, path)
        case "minLength" | "minItems" | "minProperties":
            made[keyword] = as_count(value, path, _most(keyword))
        case "maxLength" | "maxItems" | "maxProperties":
            if as_count(value, path, 2**63) < _PLACES_MAX:
                made[keyword] = as_count(value, path, _most(keyword))
        case "pattern":
            made[keyword] = engine_pattern(value, path)
        case "format":
            _format(as_text(value, path), node, made, path)


def _most(keyword: str) -> int:
    lengths = keyword.endswith("Length")
    return limits.JSON_SCHEMA_LENGTH_MAX if lengths else limits.JSON_SCHEMA_ITEMS_MAX


def _multiple(value: object, node: Mapping[str, object], made: Node, path: str) -> None:
    """Take over a `multipleOf`; of negative numbers the engine writes no multiples."""
    if as_number(value, path) <= 0:
        raise InvalidRequest(path, "must be greater than 0")
    most, under = node.get("maximum"), node.get("exclusiveMaximum")
    none_left = (isinstance(most, int | float) and most < 0) or (
        isinstance(under, int | float) and not isinstance(under, bool) and under <= 0
    )
    if none_left:
        raise InvalidRequest(path, "multiples of negative numbers cannot be enforced")
    made["multipleOf"] = value


def all_evaluated(node: Mapping[str, object], keyword: str) -> bool:
    """Tell whether a rule for what other keywords left over adds nothing, or is simply "none"."""
    rest = node[keyword]
    return rest in (True, {}) or (rest is False and not any(key in node for key in IN_PLACE))


def settle_bounds(made: Node, path: str) -> None:
    """Tighten, drop or refuse bounds that the engine does not keep as they are.

    It writes -0 where less than 0 is asked for. It counts the properties that it writes, and writes
    free names more than once: of two equal names a reader keeps one.
    """
    if made.get("exclusiveMaximum") == 0:
        del made["exclusiveMaximum"]
        most = made.get("maximum")
        made["maximum"] = min(most, _BELOW_0) if isinstance(most, int | float) else _BELOW_0
    properties, required = made.get("properties", {}), _list(made.get("required"))
    closed = made.get("additionalProperties") is False and "patternProperties" not in made
    least, most = made.get("minProperties"), made.get("maxProperties")
    assert isinstance(properties, dict), "rewritten before"
    if isinstance(least, int) and least <= len(required):
        del made["minProperties"]
    elif isinstance(least, int) and least > len(required) + 1 and not closed:
        raise InvalidRequest(
            join(path, "minProperties"),
            "more than one property beyond the required ones cannot be enforced by 'minProperties'",
        )
    if isinstance(most, int) and closed and len(properties) <= most:
        del made["maxProperties"]


def _exclusive_bound(
    keyword: str, value: object, node: Mapping[str, object], made: Node, path: str
) -> None:
    if isinstance(value, bool):  # draft 4: whether the other bound excludes itself
        inclusive = "minimum" if keyword == "exclusiveMinimum" else "maximum"
        if value and inclusive in node:
            value = node[inclusive]
        else:
            return
    made[keyword] = (as_minimum if keyword == "exclusiveMinimum" else as_maximum)(value, path)


def _format(name: str, node: Mapping[str, object], made: Node, path: str) -> None:
    if name in formats.REFUSED:
        raise InvalidRequest(path, f"the format '{name}' is not supported")
    if name in formats.ENGINE:
        made["format"] = formats.ENGINE[name]
    elif name in formats.PATTERNS:
        if "pattern" not in node:
            made["pattern"] = formats.PATTERNS[name]
        else:  # both have to hold
            made["allOf"] = [*_list(made.get("allOf")), {"pattern": formats.PATTERNS[name]}]


def name_pattern(names: Rewritten) -> str | None:
    """Return the pattern of a schema for names: empty = any name, None = not to be had."""
    if names is True:
        return ""
    if names is False:
        return None
    rules = {key: value for key, value in names.items() if key != "type"}
    if not rules:
        return ""
    if len(rules) == 1 and isinstance(rules.get("pattern"), str):
        return str(rules["pattern"])
    if set(rules) <= {"minLength", "maxLength"}:
        return f"^[^\\n]{{{rules.get('minLength', 0)},{rules.get('maxLength', '')}}}$"
    values = rules.get("enum")
    if len(rules) == 1 and isinstance(values, list):
        texts = [value for value in values if isinstance(value, str)]
        if texts and all(text.replace("_", "").replace("-", "").isalnum() for text in texts):
            return f"^({'|'.join(texts)})$"
    return None


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
