"""Finding the keyword that makes a schema impossible to enforce, by trying its parts.

The grammar engine names no places: the deepest part that fails alone is looked for, and in it the
keyword without which it would not. Called by `grammars.py`, for schemas that are refused.
"""

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

__all__ = ["culprit_of"]

Check = Callable[[Sequence[str]], Awaitable[list[str | None]]]
Place = tuple[str, ...]
Schema = Mapping[str, object]

_DEPTH_MAX = 12
_PARTS_MAX = 64
_MAPS = ("$defs", "properties", "patternProperties")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "additionalItems")


async def culprit_of(schema: Schema, check: Check) -> Place:
    """Return the way to the keyword at fault, as far as it can be told."""
    definitions = schema.get("$defs", {})
    place: Place = ()
    for _ in range(_DEPTH_MAX):
        parts = list(_parts(schema))[:_PARTS_MAX]
        errors = await check([_alone(part, definitions) for _, part in parts])
        failing = next((at for at, error in enumerate(errors) if error is not None), None)
        if failing is None:
            break
        steps, schema = parts[failing]
        place += steps
    # Without its type nearly any schema can be followed: that says little about it.
    ordered = sorted(schema, key=lambda keyword: keyword == "type")
    keywords = [keyword for keyword in ordered if keyword != "$defs"][:_PARTS_MAX]
    lesser = [{key: schema[key] for key in keywords if key != left_out} for left_out in keywords]
    errors = await check([_alone(part, definitions) for part in lesser])
    for keyword, error in zip(keywords, errors, strict=True):
        if error is None:
            return (*place, keyword)
    return place


def _alone(part: Schema, definitions: object) -> str:
    whole = {**part, "$defs": definitions}
    return json.dumps({"json_schema": whole}, separators=(",", ":"))


def _parts(schema: Schema) -> Iterator[tuple[Place, Schema]]:
    # Definitions first: what refers to a bad one fails with it.
    for keyword, value in sorted(schema.items(), key=lambda item: item[0] != "$defs"):
        if keyword in _MAPS and isinstance(value, dict):
            for name, part in value.items():
                if isinstance(part, dict):
                    yield (keyword, name), part
        elif keyword in _LISTS and isinstance(value, list):
            for index, part in enumerate(value):
                if isinstance(part, dict):
                    yield (keyword, str(index)), part
        elif keyword in _SINGLE and isinstance(value, dict):
            yield (keyword,), value
