"""Checks of single values inside a JSON schema, all raising InvalidRequest. Pure.

Where the grammar engine would bend a value (doubles for integers, 64 bits), a check tightens it:
what is then generated still follows the schema as the client wrote it.
"""

import math
from collections.abc import Mapping

from schemas import limits
from schemas.dialects.canonical import InvalidRequest

EXACT_MAX = 2**53
"""The largest size up to which every whole number is a double."""

_WHOLE_MAX = 2**63 - 1024
"""The largest double whose value the engine can hold as a whole number, on either side of 0."""

_CONSTANT_DEPTH_MAX = 16


def join(path: str, key: str | int) -> str:
    """Return the path of a member."""
    return f"{path}.{key}" if path else str(key)


def as_text(value: object, path: str) -> str:
    """Return a bounded string that can be written as UTF-8."""
    if not isinstance(value, str):
        raise InvalidRequest(path, "expected a string")
    if len(value) > limits.JSON_SCHEMA_STRING_CHARS_MAX:
        most = limits.JSON_SCHEMA_STRING_CHARS_MAX
        raise InvalidRequest(path, f"strings of a schema have at most {most} characters")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(path, "expected valid Unicode: lone surrogate") from None
    return value


def as_list(value: object, path: str) -> list[object]:
    """Return a list of at least one item."""
    if not isinstance(value, list) or not value:
        raise InvalidRequest(path, "expected a list of at least one item")
    return value


def as_object(value: object, path: str) -> Mapping[str, object]:
    """Return a JSON object."""
    if not isinstance(value, dict):
        raise InvalidRequest(path, "expected an object")
    return value


def as_count(value: object, path: str, most: int) -> int:
    """Return a whole number from 0 to `most`; 5.0 is one, as JSON schema has it."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequest(path, "expected a whole number from 0 on")
    if value > most:
        raise InvalidRequest(path, f"at most {most} can be enforced")
    return value


def as_number(value: object, path: str) -> int | float:
    """Return a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(path, "expected a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(path, "expected a finite number")
    return value


def as_minimum(value: object, path: str) -> int | float:
    """Return a lower bound that the engine keeps: the same, or the next double above."""
    bound = as_number(value, path)
    if bound > EXACT_MAX:
        raise InvalidRequest(path, f"lower bounds above {EXACT_MAX} cannot be enforced")
    if bound >= -EXACT_MAX:
        return bound
    return max(_double_beside(bound, path, math.inf), -_WHOLE_MAX)


def as_maximum(value: object, path: str) -> int | float:
    """Return an upper bound that the engine keeps: the same, or the next double below."""
    bound = as_number(value, path)
    if bound < -EXACT_MAX:
        raise InvalidRequest(path, f"upper bounds below -{EXACT_MAX} cannot be enforced")
    if bound <= EXACT_MAX:
        return bound
    return min(_double_beside(bound, path, -math.inf), _WHOLE_MAX)


def as_constant(value: object, path: str, depth: int = 0) -> object:
    """Return a value of `const` or `enum` whose numbers the engine writes exactly."""
    if depth > _CONSTANT_DEPTH_MAX:
        raise InvalidRequest(path, f"constants nest at most {_CONSTANT_DEPTH_MAX} deep")
    if isinstance(value, str):
        return as_text(value, path)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        if abs(as_number(value, path)) > EXACT_MAX:
            raise InvalidRequest(path, f"constants beyond {EXACT_MAX} cannot be enforced")
        return value
    if isinstance(value, list):
        return [as_constant(item, join(path, at), depth + 1) for at, item in enumerate(value)]
    return {
        as_text(key, path): as_constant(item, join(path, key), depth + 1)
        for key, item in as_object(value, path).items()
    }


def _double_beside(bound: int | float, path: str, toward: float) -> int | float:
    try:
        near = float(bound)
    except OverflowError:
        raise InvalidRequest(path, "the bound is no double") from None
    if (near > bound and toward < 0) or (near < bound and toward > 0):
        near = math.nextafter(near, toward)
    return near if isinstance(bound, float) else int(near)
