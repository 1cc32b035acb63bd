"""What a reply's text must follow, as OpenAI's APIs and vLLM's extensions ask for it.

Owns `response_format`, `text.format`, `structured_outputs` and the older `guided_*`. Whether a
schema or grammar can be followed is found where it is compiled.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from schemas.dialects import fields
from schemas.dialects.canonical import InvalidRequest, OutputFormat
from schemas.dialects.json_texts import as_schema
from schemas.dialects.openai_errors import refuse_unknown
from schemas.limits import HTTP_OUTPUT_CHOICES_MAX

EXTENSIONS: Final = frozenset(
    {"structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"}
)

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_KINDS = ("text", "json_object", "json_schema")
_SCHEMA_FIELDS = ("name", "description", "schema", "strict")
_CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object")


def read_output(
    request: Mapping[str, object], standard: OutputFormat | None
) -> OutputFormat | None:
    """Return the one format that a request asks for.

    Args:
        standard: what it asks for by the member that the endpoint's own API has.

    Raises: InvalidRequest, also where two are asked for.
    """
    asked = [] if standard is None else [standard]
    value = request.get("structured_outputs")
    if value is not None:
        path = "structured_outputs"
        constraints = fields.as_object(value, path)
        refuse_unknown(constraints, _CONSTRAINTS, path)
        asked += [
            _constraint(name, constraints[name], f"{path}.{name}")
            for name in _CONSTRAINTS
            if constraints.get(name) is not None
        ]
        if not asked:
            raise InvalidRequest(path, f"give one of {', '.join(_CONSTRAINTS)}")
    asked += [
        _constraint(name, request[f"guided_{name}"], f"guided_{name}")
        for name in ("json", "regex", "choice", "grammar")
        if request.get(f"guided_{name}") is not None
    ]
    if len(asked) > 1:
        raise InvalidRequest(asked[1].path, f"only one output format is allowed: {asked[0].path}")
    return asked[0] if asked else None


def read_response_format(value: object, path: str, *, flat: bool) -> OutputFormat | None:
    """Return the format of `response_format`, or of `text.format`, which is flat."""
    if value is None:
        return None
    form = fields.as_object(value, path)
    kind = fields.as_choice(fields.required(form, "type", path), f"{path}.type", _KINDS)
    if kind != "json_schema":
        refuse_unknown(form, ("type",), path)
        return None if kind == "text" else OutputFormat(kind="json_object", path=path)
    if flat:
        refuse_unknown(form, ("type", *_SCHEMA_FIELDS), path)
    else:
        refuse_unknown(form, ("type", "json_schema"), path)
        form_path, path = path, f"{path}.json_schema"
        form = fields.as_object(fields.required(form, "json_schema", form_path), path)
        refuse_unknown(form, _SCHEMA_FIELDS, path)
    name = fields.as_text(fields.required(form, "name", path), f"{path}.name")
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{path}.name", f"String should match pattern '^{_NAME.pattern}$'")
    if form.get("description") is not None:
        fields.as_text(form["description"], f"{path}.description")
    if form.get("strict") is not None:
        fields.as_flag(form["strict"], f"{path}.strict")
    schema = as_schema(fields.required(form, "schema", path), f"{path}.schema")
    return OutputFormat(kind="json_schema", schema=schema, path=f"{path}.schema")


def _constraint(name: str, value: object, path: str) -> OutputFormat:
    if name == "json":
        return OutputFormat(kind="json_schema", schema=_schema(value, path), path=path)
    if name == "choice":
        return OutputFormat(kind="choice", choices=_choices(value, path), path=path)
    if name == "json_object":
        if not fields.as_flag(value, path):
            raise InvalidRequest(path, "must be true where it is given")
        return OutputFormat(kind="json_object", path=path)
    kind: Literal["regex", "lark"] = "regex" if name == "regex" else "lark"
    pattern = fields.as_text(value, path)
    if not pattern:
        raise InvalidRequest(path, "String should have at least 1 character")
    return OutputFormat(kind=kind, pattern=pattern, path=path)


def _schema(value: object, path: str) -> dict[str, object]:
    """Return a schema that came as an object or, as vLLM's clients send it, as its JSON text."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise InvalidRequest(path, "Input should be a JSON schema") from error
    return as_schema(value, path)


def _choices(value: object, path: str) -> tuple[str, ...]:
    entries = fields.as_list(value, path, HTTP_OUTPUT_CHOICES_MAX)
    texts = [fields.as_text(entry, f"{path}.{index}") for index, entry in enumerate(entries)]
    if not texts or not all(texts):
        raise InvalidRequest(path, "must hold texts, none of them empty")
    return tuple(dict.fromkeys(texts))
