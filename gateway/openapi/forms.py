"""Short ways to write JSON schemas (OpenAPI 3.1 uses JSON Schema 2020-12 as it is)."""

from typing import Any, Final

__all__ = [
    "ANYTHING",
    "FLAG",
    "NULL",
    "OPEN_OBJECT",
    "TEXT",
    "Schema",
    "array",
    "enum",
    "integer",
    "neutral",
    "number",
    "obj",
    "one_of",
    "optional",
    "ref",
    "text",
]

Schema = dict[str, Any]

ANYTHING: Final[Schema] = {}
TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
NULL: Final[Schema] = {"type": "null"}
OPEN_OBJECT: Final[Schema] = {"type": "object"}


def obj(properties: Schema, required: str = "", *, closed: bool = False) -> Schema:
    """Return an object; `required` are names divided by blanks, `closed` refuses all others."""
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required.split()
    if closed:
        schema["additionalProperties"] = False
    return schema


def array(items: Schema, least: int = 0, most: int | None = None) -> Schema:
    """Return an array of `least` to `most` items."""
    schema: Schema = {"type": "array", "items": items}
    if least:
        schema["minItems"] = least
    if most is not None:
        schema["maxItems"] = most
    return schema


def text(chars_max: int, pattern: str | None = None, chars_min: int = 0) -> Schema:
    """Return a string of a length."""
    schema: Schema = {"type": "string", "maxLength": chars_max}
    if chars_min:
        schema["minLength"] = chars_min
    if pattern is not None:
        schema["pattern"] = pattern
    return schema


def integer(low: int, high: int | None = None) -> Schema:
    """Return a whole number of a range."""
    schema: Schema = {"type": "integer", "minimum": low}
    if high is not None:
        schema["maximum"] = high
    return schema


def number(low: float, high: float) -> Schema:
    """Return a number of a range."""
    return {"type": "number", "minimum": low, "maximum": high}


def enum(*values: str) -> Schema:
    """Return one of some strings."""
    return {"type": "string", "enum": list(values)}


def one_of(*schemas: Schema) -> Schema:
    """Return what fits at least one of the schemas."""
    return {"anyOf": list(schemas)}


def optional(schema: Schema) -> Schema:
    """Return a schema that takes null too, which means the same as leaving the member out."""
    return one_of(schema, NULL)


def neutral(why: str) -> Schema:
    """Return a member of the hosted API that is taken only where it asks for nothing."""
    return {"description": f"Accepted only where it asks for nothing: {why}."}


def ref(name: str) -> Schema:
    """Return a reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}
