"""Checks of single JSON values, with the words that clients know from the hosted APIs.

Every function takes the value and its path (`messages.0.content`), and returns it with a type or
raises InvalidRequest. Nothing goes deeper than the shapes that the dialects know.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from schemas.dialects.canonical import InvalidRequest
from schemas.limits import HTTP_MESSAGES_MAX

INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)
COUNT_MAX: Final = 2**31 - 1
MODEL_CHARS_MAX: Final = 256
LABEL_CHARS_MAX: Final = 512

Neutral = Callable[[object], bool]
"""Tells whether a value of a field that is not built yet asks for nothing."""


def join(path: str, key: str | int) -> str:
    """Return the path of a member."""
    return f"{path}.{key}" if path else str(key)


def as_object(value: object, path: str) -> dict[str, object]:
    """Return a JSON object."""
    if isinstance(value, dict):
        return value
    if not path:
        raise InvalidRequest("", "the request body must be a JSON object")
    raise InvalidRequest(path, "Input should be an object")


def as_list(value: object, path: str, items_max: int = HTTP_MESSAGES_MAX) -> list[object]:
    """Return a JSON array of at most `items_max` items."""
    if not isinstance(value, list):
        raise InvalidRequest(path, "Input should be a valid list")
    if len(value) > items_max:
        raise InvalidRequest(path, f"List should have at most {items_max} items")
    return value


def as_blocks(value: object, path: str) -> list[object]:
    """Return the content blocks of a member that could be a string too, and was none."""
    if not isinstance(value, list):
        raise InvalidRequest(path, "Input should be a string or a list of content blocks")
    return as_list(value, path)


def as_text(value: object, path: str, chars_max: int | None = None) -> str:
    """Return a string that can be written as UTF-8, of at most `chars_max` characters."""
    if not isinstance(value, str):
        raise InvalidRequest(path, "Input should be a valid string")
    if chars_max is not None and len(value) > chars_max:
        raise InvalidRequest(path, f"String should have at most {chars_max} characters")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(path, "Input should be valid Unicode: lone surrogate") from None
    return value


def as_flag(value: object, path: str) -> bool:
    """Return a boolean; 0 and 1 are none."""
    if isinstance(value, bool):
        return value
    raise InvalidRequest(path, "Input should be a valid boolean")


def as_integer(value: object, path: str, low: int, high: int = COUNT_MAX) -> int:
    """Return an integer of a range; booleans and floats are none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(path, "Input should be a valid integer")
    if value < low:
        raise InvalidRequest(path, f"must be greater than or equal to {low}")
    if value > high:
        raise InvalidRequest(path, f"must be less than or equal to {high}")
    return value


def as_number(value: object, path: str, low: float, high: float) -> float:
    """Return a finite number of a range; booleans are none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise InvalidRequest(path, "Input should be a valid number")
    if value < low:
        raise InvalidRequest(path, f"must be greater than or equal to {low:g}")
    if value > high:
        raise InvalidRequest(path, f"must be less than or equal to {high:g}")
    return float(value)


def as_choice(value: object, path: str, allowed: Collection[str]) -> str:
    """Return one of the allowed strings."""
    if isinstance(value, str) and value in allowed:
        return value
    expected = ", ".join(f"'{name}'" for name in allowed)
    raise InvalidRequest(path, f"Input should be one of {expected}")


def as_messages(value: object) -> list[object]:
    """Return the messages of a body: at least one; messages and all their parts are bounded.

    Parts are counted before any is read, so that a body of a million tiny ones costs no time.
    """
    entries = as_list(value, "messages")
    if not entries:
        raise InvalidRequest("messages", "at least one message is required")
    contents = _lists_of(entries)
    if sum(map(len, contents)) > HTTP_MESSAGES_MAX or (
        sum(len(inner) for content in contents for inner in _lists_of(content)) > HTTP_MESSAGES_MAX
    ):
        raise InvalidRequest("messages", f"at most {HTTP_MESSAGES_MAX} content blocks are allowed")
    return entries


def _lists_of(entries: list[object]) -> list[list[object]]:
    contents = (entry.get("content") for entry in entries if isinstance(entry, dict))
    return [content for content in contents if isinstance(content, list)]


def required(body: Mapping[str, object], key: str, path: str = "") -> object:
    """Return a member that must be there."""
    if key not in body:
        raise InvalidRequest(join(path, key), "Field required")
    return body[key]


def refuse_extra(body: Mapping[str, object], known: Collection[str], path: str) -> None:
    """Raise for the first member that the API does not know."""
    for key in body:
        if key not in known:
            raise InvalidRequest(join(path, key), "Extra inputs are not permitted")


def refuse_unbuilt(body: Mapping[str, object], unbuilt: Mapping[str, Neutral], path: str) -> None:
    """Raise for the first member that would change the reply and is not built yet.

    Null and neutral values pass: they ask for nothing.
    """
    for key in body:
        neutral = unbuilt.get(key)
        if neutral is not None and body[key] is not None and not neutral(body[key]):
            raise InvalidRequest(join(path, key), "not supported yet")


def never(value: object) -> bool:
    """Tell that only null asks for nothing."""
    return False


def empty(value: object) -> bool:
    """Tell whether a list or object is empty, or holds nothing but empty members."""
    if isinstance(value, dict):
        return all(member is None or member == [] or member == {} for member in value.values())
    return value == []


def one_of(*neutral: object) -> Neutral:
    """Return a check for values that ask for nothing; 1 is not true here."""
    return lambda value: any(type(value) is type(known) and value == known for known in neutral)


def typed(*names: str) -> Neutral:
    """Return a check for objects whose `type` asks for nothing."""
    return lambda value: isinstance(value, dict) and value.get("type") in names


def stop_strings(value: object, path: str, count_max: int, chars_max: int) -> tuple[str, ...]:
    """Return stop strings without repetitions; empty ones are refused."""
    texts = as_list(value, path, count_max)
    for index, text in enumerate(texts):
        if not as_text(text, join(path, index), chars_max):
            raise InvalidRequest(join(path, index), "stop sequences must be non-empty")
    return tuple(dict.fromkeys(text for text in texts if isinstance(text, str)))


def minimum_tokens(body: Mapping[str, object], max_tokens: int | None) -> int:
    """Return the extension `min_tokens`, which must not exceed `max_tokens`."""
    value = body.get("min_tokens")
    if value is None:
        return 0
    minimum = as_integer(value, "min_tokens", 0)
    if max_tokens is not None and minimum > max_tokens:
        raise InvalidRequest(
            "min_tokens", f"must be less than or equal to max_tokens, {max_tokens}"
        )
    return minimum


def optional_flag(body: Mapping[str, object], key: str) -> bool:
    """Return a boolean that is false where it is absent or null."""
    value = body.get(key)
    return False if value is None else as_flag(value, key)


def optional_number(
    body: Mapping[str, object], key: str, default: float, low: float, high: float
) -> float:
    """Return a number, or its default where it is absent or null."""
    value = body.get(key)
    return default if value is None else as_number(value, key, low, high)


def optional_integer(
    body: Mapping[str, object], key: str, low: int, high: int = COUNT_MAX
) -> int | None:
    """Return an integer, or None where it is absent or null."""
    value = body.get(key)
    return None if value is None else as_integer(value, key, low, high)
