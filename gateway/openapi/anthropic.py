"""Schemas of POST /v1/messages and what it answers."""

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
    neutral,
    number,
    obj,
    one_of,
    optional,
    ref,
    text,
)
from schemas import limits
from schemas.dialects.anthropic import COUNTED

__all__ = ["ANTHROPIC_SCHEMAS"]

_NAME: Final = text(64, r"^[a-zA-Z0-9_-]{1,64}$", 1)
_CACHE: Final = {"cache_control": optional(ref("CacheControl"))}
_TEXT_BLOCK: Final = obj(
    {"type": enum("text"), "text": {"type": "string", "minLength": 1}, "citations": ANYTHING}
    | _CACHE,
    "type text",
)
_TEXTS: Final = one_of(TEXT, array(ref("TextBlock")))
_BLOCK_TYPES: Final = (
    *("text", "tool_use", "tool_result", "thinking", "redacted_thinking", "search_result"),
    "document",
)

_BODY: Final[Schema] = {
    "model": ref("ModelId"),
    "messages": array(ref("InputMessage"), 1, limits.HTTP_MESSAGES_MAX),
    "system": optional(_TEXTS),
    "max_tokens": integer(0, 2**31 - 1),
    "stream": optional(FLAG),
    "stop_sequences": optional(
        array(
            text(limits.HTTP_STOP_SEQUENCE_CHARS_MAX, r"\S", 1), 0, limits.HTTP_STOP_SEQUENCES_MAX
        )
    ),
    "temperature": optional(number(0, 1)),
    "top_p": optional(number(0, 1)),
    "top_k": optional(integer(0, 2**31 - 1)),
    "tools": optional(array(ref("AnthropicTool"), 0, limits.HTTP_TOOLS_MAX)),
    "tool_choice": optional(ref("AnthropicToolChoice")),
    "thinking": optional(ref("ThinkingChoice")),
    "output_config": optional(ref("OutputConfig")),
    "cache_control": optional(ref("CacheControl")),
    "metadata": optional(obj({"user_id": optional(text(512))}, closed=True)),
    "service_tier": optional(enum("auto", "standard_only")),
    "seed": optional(integer(-(2**63), 2**63 - 1)) | {"description": "Extension."},
    "ignore_eos": optional(FLAG) | {"description": "Extension."},
    "min_tokens": optional(integer(0)) | {"description": "Extension; at most max_tokens."},
    "speed": neutral("`standard`"),
    "inference_geo": neutral("null"),
    "container": neutral("null"),
    "diagnostics": neutral("empty"),
    "mcp_servers": neutral("empty"),
    "context_management": neutral("empty"),
    "compaction": neutral("null"),
    "fallbacks": neutral("empty"),
    "fallback_credit_token": neutral("null"),
    "billing_policy": neutral("null"),
    "output_format": optional(ref("AnthropicFormat")) | {"description": "The older place."},
    "thread": neutral("null; the error makes SDKs send whole histories"),
}

_USAGE: Final = obj(
    {
        "input_tokens": integer(0) | {"description": "Without the cached part of the prompt."},
        "output_tokens": integer(0),
        "cache_creation_input_tokens": integer(0) | {"description": "0: writing costs nothing."},
        "cache_read_input_tokens": integer(0)
        | {"description": "The part of the prompt that the workspace's earlier ones had cached."},
        "service_tier": TEXT,
    },
    "input_tokens output_tokens",
)

ANTHROPIC_SCHEMAS: Final[dict[str, Schema]] = {
    "CacheControl": obj({"type": enum("ephemeral"), "ttl": optional(enum("5m", "1h"))}, "type"),
    "TextBlock": _TEXT_BLOCK,
    "ContentBlock": obj(
        {
            "type": enum(*_BLOCK_TYPES),
            "text": TEXT,
            "id": TEXT,
            "name": TEXT,
            "input": OPEN_OBJECT,
            "tool_use_id": TEXT,
            "content": ANYTHING,
            "is_error": optional(FLAG),
            "thinking": TEXT,
            "signature": TEXT,
            "data": TEXT,
            "source": ANYTHING,
            "title": optional(TEXT),
        }
        | _CACHE,
        "type",
    ),
    "InputMessage": obj(
        {
            "role": enum("user", "assistant", "system"),
            "content": one_of(TEXT, array(ref("ContentBlock"))),
        },
        "role content",
    ),
    "AnthropicTool": obj(
        {
            "name": _NAME,
            "description": optional(TEXT),
            "type": optional(TEXT),
            "input_schema": obj({"type": enum("object")}, "type"),
            "strict": optional(FLAG),
        }
        | _CACHE,
        "name",
    ),
    "AnthropicToolChoice": obj(
        {
            "type": enum("auto", "any", "none", "tool"),
            "name": _NAME,
            "disable_parallel_tool_use": optional(FLAG),
        },
        "type",
    ),
    "ThinkingChoice": obj(
        {
            "type": enum("enabled", "adaptive", "between_tools", "disabled"),
            "budget_tokens": integer(1_024),
            "display": optional(enum("summarized", "omitted")),
        },
        "type",
    ),
    "OutputConfig": obj(
        {
            "effort": optional(enum("low", "medium", "high", "xhigh", "max")),
            "format": optional(ref("AnthropicFormat")),
            "task_budget": neutral("null"),
        },
        closed=True,
    ),
    "AnthropicFormat": obj(
        {"type": enum("json_schema"), "schema": OPEN_OBJECT}, "type schema", closed=True
    ),
    "MessageRequest": obj(_BODY, "model max_tokens messages", closed=True),
    "CountTokensRequest": obj(
        {name: schema for name, schema in _BODY.items() if name in COUNTED},
        "model messages",
        closed=True,
    ),
    "TokenCount": obj({"input_tokens": integer(0)}, "input_tokens"),
    "Message": obj(
        {
            "id": TEXT,
            "type": enum("message"),
            "role": enum("assistant"),
            "model": TEXT,
            "content": array(
                obj({"type": enum("text", "thinking", "redacted_thinking", "tool_use")}, "type")
            ),
            "stop_reason": enum(
                *("end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"),
                "model_context_window_exceeded",
            ),
            "stop_sequence": optional(TEXT),
            "stop_details": one_of(OPEN_OBJECT, NULL),
            "usage": _USAGE,
        },
        "id type role model content stop_reason stop_sequence usage",
    ),
}
