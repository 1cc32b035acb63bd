"""Schemas of what is neither Anthropic's nor OpenAI's alone: models, errors, our own paths."""

from typing import Final

from gateway.openapi.forms import (
    ANYTHING,
    FLAG,
    NULL,
    OPEN_OBJECT,
    TEXT,
    Schema,
    array,
    enum,
    integer,
    obj,
    optional,
    ref,
    text,
)

__all__ = ["OWN_SCHEMAS"]

_MODEL: Final = obj(
    {
        "type": enum("model"),
        "id": TEXT,
        "display_name": TEXT,
        "created_at": {"type": "string", "format": "date-time"},
        "lifecycle": enum("active"),
        "line": NULL,
        "max_input_tokens": integer(1),
        "max_tokens": integer(1),
        "capabilities": NULL,
        "deprecated_at": NULL,
        "retires_at": NULL,
        "object": enum("model"),
        "created": integer(0),
        "owned_by": TEXT,
    },
    "type id display_name created_at object created owned_by",
)

OWN_SCHEMAS: Final[dict[str, Schema]] = {
    "AnthropicError": obj(
        {
            "type": enum("error"),
            "error": obj({"type": TEXT, "message": TEXT, "details": OPEN_OBJECT}, "type message"),
            "request_id": TEXT,
        },
        "type error request_id",
    ),
    "OpenAiError": obj(
        {
            "error": obj(
                {
                    "message": TEXT,
                    "type": TEXT,
                    "param": optional(TEXT),
                    "code": optional(TEXT),
                },
                "message type param code",
            )
        },
        "error",
    ),
    "Model": _MODEL,
    "ModelList": obj(
        {
            "object": enum("list"),
            "data": array(ref("Model")),
            "has_more": FLAG,
            "first_id": optional(TEXT),
            "last_id": optional(TEXT),
        },
        "object data has_more first_id last_id",
    ),
    "EmbeddingRequest": obj(
        {
            "model": ref("ModelId"),
            "input": ANYTHING,
            "encoding_format": optional(enum("float", "base64")),
            "dimensions": optional(integer(1)),
            "user": optional(text(512)),
        },
        "model input",
        closed=True,
    ),
    "Outcome": obj(
        {
            "id": TEXT,
            "type": enum("message"),
            "object": enum("chat.completion", "text_completion", "response"),
            "status": enum("completed", "cancelled", "deadline", "late", "abandoned", "failed"),
        },
        "id status",
    ),
    "UsageTotals": obj({"data": array(OPEN_OBJECT)}, "data"),
    "Root": obj({"name": TEXT, "models": array(TEXT)}, "name models"),
    "OpenApi": obj({"openapi": TEXT, "info": OPEN_OBJECT, "paths": OPEN_OBJECT}, "openapi paths"),
}
