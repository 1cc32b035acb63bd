"""JSON that passes through a dialect unread: schemas, arguments, what a reply repeats.

Owns that it can be written as JSON text again, whatever the client sent.
"""

import json

import msgspec

from schemas.dialects import fields
from schemas.dialects.canonical import InvalidRequest
from schemas.json_schema import check_shape
from schemas.limits import HTTP_JSON_DEPTH_MAX


def json_text(value: object, path: str) -> str:
    """Return the JSON text of a value, spaced as models are trained on. Raises InvalidRequest."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(path, "Input should be valid JSON") from error
    return fields.as_text(text, path)


def as_schema(value: object, path: str) -> dict[str, object]:
    """Return a JSON schema: any object; what may stand in it is checked where it is compiled."""
    schema = fields.as_object(value, path)
    json_text(schema, path)
    return schema


def as_arguments_schema(value: object, path: str) -> dict[str, object]:
    """Return the schema of a tool's arguments, which are an object; none at all allows any.

    Raises: InvalidRequest where it is no JSON schema; one that cannot be enforced passes.
    """
    if value is None:
        return {"type": "object", "properties": {}}
    schema = fields.as_object(value, path)
    size_chars = len(json_text(schema, path))
    if schema.get("type", "object") != "object":
        raise InvalidRequest(fields.join(path, "type"), "Input should be 'object'")
    check_shape(schema, path, size_chars)
    return {"type": "object"} | schema


def arguments_of(text: str, path: str) -> str:
    """Return the JSON text of a call's arguments that came as text; an empty one is `{}`.

    Raises: InvalidRequest where it is not the text of an object.
    """
    if not text or text.isspace():
        return "{}"
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidRequest(path, "Input should be the JSON text of an object") from error
    if not isinstance(value, dict) or _is_deeper(value, HTTP_JSON_DEPTH_MAX):
        raise InvalidRequest(path, "Input should be the JSON text of an object")
    return json_text(value, path)


def _is_deeper(value: object, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        level = [child for node in level for child in _children(node)]
        if not level:
            return False
    return True


def _children(node: object) -> list[object]:
    members = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [member for member in members if isinstance(member, dict | list)]
