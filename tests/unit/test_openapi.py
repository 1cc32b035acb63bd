"""The served description of the API: whole, well-formed, and about the routes that there are."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
from starlette.routing import Route

from gateway.app import routes_of
from gateway.errors import Overloaded, show
from gateway.openapi import OPERATIONS, openapi_document
from schemas.dialects import anthropic, openai
from schemas.dialects.canonical import InvalidRequest

DOCUMENT: Any = openapi_document("1.0")


def validator(name: str) -> jsonschema.Draft202012Validator:
    """Return the check of one schema of the document."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return jsonschema.Draft202012Validator(schema)


def references(node: object) -> Iterator[str]:
    """Yield every reference in the document."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield str(value)
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_every_route_is_described_and_nothing_else() -> None:
    """Methods and paths are those of the application; the doubled prefix is a server of each."""
    described = {
        (method.upper(), path)
        for path, item in DOCUMENT["paths"].items()
        for method in item
        if method != "servers"
    }
    assert described == {(operation.method, operation.path) for operation in OPERATIONS}
    served = set()
    for route in routes_of():
        assert isinstance(route, Route)
        path = re.sub(r":path}", "}", route.path)
        for method in route.methods or ():
            if method != "HEAD" or path == "/":  # elsewhere it is GET without a body
                served.add((method, path))
    plain = {(method, path) for method, path in served if not path.startswith("/v1/v1/")}
    assert plain == described
    doubled = {(method, path[3:]) for method, path in served - plain}
    assert doubled == {(method, path) for method, path in plain if path.startswith("/v1/")}
    for path, item in DOCUMENT["paths"].items():
        assert ("/v1" in {server["url"] for server in item.get("servers", ())}) == (
            path.startswith("/v1/")
        )


def test_every_schema_is_one_and_is_used() -> None:
    """All schemas are valid, every reference leads to one, and none lies about unused."""
    schemas = DOCUMENT["components"]["schemas"]
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    named = {found.rpartition("/")[2] for found in references(DOCUMENT)}
    assert named == set(schemas) | set(DOCUMENT["components"]["headers"])
    names = [operation.name for operation in OPERATIONS]
    assert len(names) == len(set(names))
    json.dumps(DOCUMENT)


def test_errors_fit_their_schemas() -> None:
    """What the dialects make of errors is what the document says."""
    shown = show(Overloaded("Overloaded: busy"))
    invalid = InvalidRequest("messages.0", "Field required", code="x", details={"a": 1})
    for body in (
        anthropic.error_body(shown.status, shown.message, "req_1"),
        anthropic.invalid_body(invalid, "req_1"),
    ):
        validator("AnthropicError").validate(body)
    for other in (
        openai.error_body(shown.status, shown.message, "req_1", code=shown.code),
        openai.invalid_body(invalid, "req_1"),
    ):
        validator("OpenAiError").validate(other)
