"""Schemas of POST /v1/responses and what it answers."""

from typing import Final

from gateway.openapi.chat import CACHED_TOKENS, LABELS
from gateway.openapi.forms import (
    ANYTHING,
    FLAG,
    OPEN_OBJECT,
    TEXT,
    Schema,
    array,
    enum,
    integer,
    neutral,
    number,
    obj,
    one_of,
    optional,
    ref,
    text,
)
from schemas import limits

__all__ = ["RESPONSE_SCHEMAS"]

_INT32: Final = 2**31 - 1
_BODY: Final[Schema] = {
    "model": ref("ModelId"),
    "input": one_of(TEXT, array(ref("ResponseItem"), 1, limits.HTTP_MESSAGES_MAX)),
    "instructions": optional(TEXT),
    "max_output_tokens": optional(integer(1, _INT32)),
    "stream": optional(FLAG),
    "stream_options": optional(ref("StreamOptions")),
    "temperature": optional(number(0, 2)),
    "top_p": optional(number(0, 1)),
    "top_logprobs": optional(integer(0, limits.LOGPROBS_MAX)),
    "tools": optional(array(ref("ResponseTool"), 0, limits.HTTP_TOOLS_MAX)),
    "tool_choice": optional(one_of(enum("none", "auto", "required"), obj({"type": TEXT}, "type"))),
    "parallel_tool_calls": optional(FLAG),
    "text": optional(
        obj(
            {
                "format": optional(
                    obj({"type": enum("text", "json_object", "json_schema")}, "type")
                ),
                "verbosity": optional(enum("low", "medium", "high")),
            },
            closed=True,
        )
    ),
    "reasoning": optional(
        obj(
            {
                "effort": optional(
                    enum("none", "minimal", "low", "medium", "high", "xhigh", "max")
                ),
                "summary": optional(enum("auto", "concise", "detailed")),
                "generate_summary": optional(enum("auto", "concise", "detailed")),
                "context": neutral("`auto`"),
                "mode": neutral("`standard`"),
            },
            closed=True,
        )
    ),
    "include": optional(array(TEXT)),
    "truncation": neutral("`disabled`"),
    "store": optional(FLAG) | {"description": "A response can be read by its id either way."},
    "previous_response_id": neutral("null"),
    "conversation": neutral("null"),
    "background": neutral("false"),
    "prompt": neutral("null"),
    "background_options": neutral("null"),
    "context_management": neutral("empty"),
    "moderation": neutral("null"),
    "image": neutral("null"),
    "access_programs": neutral("null"),
    "max_tool_calls": optional(integer(1)),
    "seed": optional(integer(-(2**63), 2**63 - 1)),
    "ignore_eos": optional(FLAG),
    "min_tokens": optional(integer(0, _INT32)),
    **LABELS,
}

RESPONSE_SCHEMAS: Final[dict[str, Schema]] = {
    "ResponseItem": obj(
        {
            "type": optional(TEXT),
            "role": TEXT,
            "content": ANYTHING,
            "call_id": TEXT,
            "name": TEXT,
            "arguments": TEXT,
            "output": ANYTHING,
        }
    ),
    "ResponseTool": obj(
        {
            "type": enum("function"),
            "name": text(64, r"^[a-zA-Z0-9_-]{1,64}$", 1),
            "description": optional(TEXT),
            "parameters": optional(OPEN_OBJECT),
            "strict": optional(FLAG),
        },
        "type name",
    ),
    "ResponseRequest": obj(_BODY, "model input", closed=True),
    "Response": obj(
        {
            "id": TEXT,
            "object": enum("response"),
            "created_at": {"type": "number"},
            "status": enum("completed", "incomplete", "failed", "cancelled"),
            "model": TEXT,
            "output": array(obj({"type": enum("message", "function_call", "reasoning")}, "type")),
            "error": optional(OPEN_OBJECT),
            "incomplete_details": optional(OPEN_OBJECT),
            "usage": optional(
                obj(
                    {
                        "input_tokens": integer(0),
                        "input_tokens_details": CACHED_TOKENS,
                        "output_tokens": integer(0),
                        "total_tokens": integer(0),
                    },
                    "input_tokens output_tokens total_tokens",
                )
            ),
        },
        "id object created_at status model output",
    ),
}
