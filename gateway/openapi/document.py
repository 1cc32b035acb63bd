"""The OpenAPI 3.1 document, put together from the operations and the schemas.

Owns what all operations share: servers, keys, headers of every response. Pure.

Source: https://spec.openapis.org/oas/v3.1.1.html
"""

from collections.abc import Mapping
from typing import Final

from gateway.openapi.anthropic import ANTHROPIC_SCHEMAS
from gateway.openapi.batches import BATCH_SCHEMAS
from gateway.openapi.chat import CHAT_SCHEMAS
from gateway.openapi.completions import COMPLETION_SCHEMAS
from gateway.openapi.forms import Schema, enum, ref
from gateway.openapi.operation import Operation, Parameter, error_schema
from gateway.openapi.operations import OPERATIONS
from gateway.openapi.own import OWN_SCHEMAS
from gateway.openapi.responses import RESPONSE_SCHEMAS

__all__ = ["openapi_document"]

SCHEMAS: Final[Mapping[str, Schema]] = {
    **ANTHROPIC_SCHEMAS,
    **BATCH_SCHEMAS,
    **CHAT_SCHEMAS,
    **COMPLETION_SCHEMAS,
    **RESPONSE_SCHEMAS,
    **OWN_SCHEMAS,
}

_MEANINGS: Final[Mapping[int, str]] = {
    400: "The request is wrong; the message names the field.",
    401: "No API key, or one that is not known.",
    403: "The key may not do this.",
    404: "No such model, reply, batch, file or path, or not kept any more.",
    408: "The body did not arrive in time.",
    410: "The reply was cancelled.",
    413: "The body is too large, also once inflated.",
    422: "The idempotency key was used with another request.",
    429: "A limit of the org is reached: come back after `retry-after` seconds. Its tokens of this "
    "month are used, or the request alone exceeds a limit: `x-should-retry` is false.",
    500: "The reply failed.",
    503: "The log does not answer: come back after `retry-after` seconds.",
    504: "The request's deadline passed.",
    529: "Overloaded or starting: come back after `retry-after` seconds.",
}
_BODY_HEADERS: Final = {
    "request-id": "Id of this call; `millstream audit --request` explains it.",
    "x-request-id": "The same, under OpenAI's name.",
}
_LIMIT_HEADERS: Final = {
    "anthropic": {
        f"anthropic-ratelimit-{kind}-{what}": f"{meaning} Only where the org has such a limit."
        for kind in ("requests", "input-tokens", "output-tokens", "tokens")
        for what, meaning in (
            ("limit", "Units a minute."),
            ("remaining", "Units left; of tokens to the nearest 1000."),
            ("reset", "When all of it is there again, RFC 3339."),
        )
    },
    "openai": {
        f"x-ratelimit-{what}-{kind}": f"{meaning} Only where the org has such a limit."
        for kind in ("requests", "tokens")
        for what, meaning in (
            ("limit", "Units a minute."),
            ("remaining", "Units left."),
            ("reset", "How long until all of it is there again: `1s`, `6m0s`, `12ms`."),
        )
    },
}
_REFUSAL_HEADERS: Final = {
    "retry-after": "Whole seconds until the same request would pass.",
    "x-should-retry": "false where trying again is in vain.",
}
_EVENTS: Final = (
    "Server-sent events in the API's own form; each has an `id` from which the stream can be "
    "resumed. Comments and pings keep it alive. A failure comes as an error event, after which the "
    "body breaks off."
)


def openapi_document(version: str, model: str) -> dict[str, object]:
    """Return the document of a product's version that serves a model."""
    paths: dict[str, dict[str, object]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, _path_item(operation.path))
        paths[operation.path][operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Millstream",
            "version": version,
            "description": "The Anthropic and the OpenAI API on one log. Every response names its "
            "request in `request-id`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": {**SCHEMAS, "ModelId": enum(model)},
            "headers": {
                name: {"description": text, "schema": {"type": "string"}}
                for name, text in _all_headers().items()
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _path_item(path: str) -> dict[str, object]:
    if not path.startswith("/v1/"):
        return {}
    doubled = {"url": "/v1", "description": "For clients whose base URL ends in /v1 already."}
    return {"servers": [{"url": "/"}, doubled]}


def _operation(operation: Operation) -> dict[str, object]:
    made: dict[str, object] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "security": [{"bearer": []}, {"key": []}] if operation.needs_key else [],
        "responses": _responses(operation),
    }
    if operation.parameters:
        made["parameters"] = [_parameter(parameter) for parameter in operation.parameters]
    if operation.body is not None:
        is_json = operation.body_media == "application/json"
        compressed = {"description": "May be compressed: `content-encoding: gzip`."}
        made["requestBody"] = {
            "required": True,
            **(compressed if is_json else {}),
            "content": {operation.body_media: {"schema": ref(operation.body)}},
        }
    return made


def _responses(operation: Operation) -> dict[str, object]:
    found: dict[str, object] = {}
    if operation.name != "create_embedding":
        own = _limit_headers(operation)
        found["200"] = _response("OK", _content(operation), own) | _links(operation)
    for status, meaning in operation.extra.items():
        found[str(status)] = _response(meaning, {operation.media: {"schema": {"type": "string"}}})
    error = {"application/json": {"schema": error_schema(operation.family)}}
    for status in operation.errors:
        own = _limit_headers(operation)
        if status == 429:
            own += tuple(_REFUSAL_HEADERS)
        found[str(status)] = _response(_MEANINGS[status], error, own)
    return found


def _all_headers() -> dict[str, str]:
    limits = {name: text for named in _LIMIT_HEADERS.values() for name, text in named.items()}
    return {**_BODY_HEADERS, **limits, **_REFUSAL_HEADERS}


def _limit_headers(operation: Operation) -> tuple[str, ...]:
    return tuple(_LIMIT_HEADERS[operation.family]) if operation.tells_limits else ()


def _links(operation: Operation) -> dict[str, object]:
    """Return where the id of a generated reply leads."""
    if operation.method != "POST" or not operation.streams:
        return {}
    parameters = {"reply_id": "$response.body#/id"}
    name = operation.name.removeprefix("create_")
    return {
        "links": {
            verb: {"operationId": f"{verb}_{name}", "parameters": parameters}
            for verb in ("retrieve", "cancel")
        }
    }


def _content(operation: Operation) -> dict[str, object]:
    if not operation.media:
        return {}
    schema = ref(operation.reply) if operation.reply is not None else {"type": "string"}
    content: dict[str, object] = {operation.media: {"schema": schema}}
    if operation.streams:
        # Without a type: some tools hold the schema against the text, others against each event.
        content["text/event-stream"] = {"schema": {"description": _EVENTS}}
    return content


def _response(
    description: str, content: Mapping[str, object], own: tuple[str, ...] = ()
) -> dict[str, object]:
    """Return a response with the headers of all and its own."""
    names = (*_BODY_HEADERS, *own)
    headers = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
    made: dict[str, object] = {"description": description, "headers": headers}
    if content:
        made["content"] = content
    return made


def _parameter(parameter: Parameter) -> dict[str, object]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.required,
        "description": parameter.description,
        "schema": parameter.schema,
    }
