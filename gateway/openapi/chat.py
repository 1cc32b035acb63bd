"""Schemas of POST /v1/chat/completions and its answer, with what OpenAI's other paths share."""

from typing import Final

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

__all__ = ["CHAT_SCHEMAS", "EXTENSIONS", "METADATA", "OPENAI_USAGE", "STOP"]

_INT32: Final = 2**31 - 1
METADATA: Final = {"type": "object", "maxProperties": 16, "additionalProperties": text(512)}
STOP: Final = one_of(
    text(limits.HTTP_STOP_SEQUENCE_CHARS_MAX, chars_min=1),
    array(text(limits.HTTP_STOP_SEQUENCE_CHARS_MAX, chars_min=1), 0, 4),
)
EXTENSIONS: Final[Schema] = {
    "top_k": optional(integer(-1, _INT32)),
    "min_p": optional(number(0, 1)),
    "repetition_penalty": optional(number(0.01, 10)),
    "ignore_eos": optional(FLAG),
    "min_tokens": optional(integer(0, _INT32)),
    "stop_token_ids": optional(array(integer(0, _INT32))),
    "bad_words": optional(array(TEXT)),
    "structured_outputs": optional(OPEN_OBJECT),
    "guided_json": ANYTHING,
    "guided_regex": optional(TEXT),
    "guided_choice": optional(array(TEXT)),
    "guided_grammar": optional(TEXT),
}
"""Members named as vLLM names them, on all generating paths of OpenAI's."""

OPENAI_USAGE: Final = obj(
    {
        "prompt_tokens": integer(0),
        "completion_tokens": integer(0),
        "total_tokens": integer(0),
        "prompt_tokens_details": obj({"cached_tokens": integer(0)}),
        "completion_tokens_details": obj({"reasoning_tokens": integer(0)}),
    },
    "prompt_tokens completion_tokens total_tokens",
)
_BODY: Final[Schema] = {
    "model": text(256, chars_min=1),
    "messages": array(ref("ChatMessage"), 1, limits.HTTP_MESSAGES_MAX),
    "max_completion_tokens": optional(integer(1, _INT32)),
    "max_tokens": optional(integer(1, _INT32)),
    "n": optional(integer(1)),
    "stop": optional(STOP),
    "seed": optional(integer(-(2**63), 2**63 - 1)),
    "stream": optional(FLAG),
    "stream_options": optional(ref("StreamOptions")),
    "temperature": optional(number(0, 2)),
    "top_p": optional(number(0, 1)),
    "presence_penalty": optional(number(-2, 2)),
    "frequency_penalty": optional(number(-2, 2)),
    "logit_bias": optional(
        {"type": "object", "additionalProperties": number(-100, 100)}
        | {"propertyNames": {"pattern": "^[0-9]+$"}}
    ),
    "logprobs": optional(FLAG),
    "top_logprobs": optional(integer(0, 20)),
    "response_format": optional(ref("ResponseFormat")),
    "tools": optional(array(ref("ChatTool"))),
    "tool_choice": optional(one_of(enum("none", "auto", "required"), obj({"type": TEXT}, "type"))),
    "parallel_tool_calls": optional(FLAG),
    "functions": ANYTHING,
    "function_call": ANYTHING,
    "reasoning_effort": optional(TEXT),
    "verbosity": ANYTHING,
    "service_tier": optional(enum("auto", "default", "flex", "scale", "priority", "fast")),
    "store": neutral("false"),
    "metadata": optional(METADATA),
    "user": optional(text(512)),
    "safety_identifier": optional(text(512)),
    "prompt_cache_key": optional(text(512)),
    "prompt_cache_retention": optional(text(512)),
    "prompt_cache_options": optional(OPEN_OBJECT),
    "modalities": neutral('["text"]'),
    "audio": neutral("null"),
    "prediction": neutral("null"),
    "web_search_options": neutral("null"),
    "moderation": neutral("null"),
    **EXTENSIONS,
}
_CHOICE: Final = obj(
    {
        "index": integer(0),
        "message": obj(
            {
                "role": enum("assistant"),
                "content": optional(TEXT),
                "refusal": optional(TEXT),
                "reasoning_content": optional(TEXT),
                "tool_calls": array(ref("ToolCall"), 1),
            },
            "role content",
        ),
        "logprobs": optional(OPEN_OBJECT),
        "finish_reason": enum("stop", "length", "tool_calls", "content_filter", "function_call"),
    },
    "index message finish_reason",
)

CHAT_SCHEMAS: Final[dict[str, Schema]] = {
    "ToolCall": obj(
        {
            "id": TEXT,
            "type": enum("function"),
            "function": obj({"name": TEXT, "arguments": TEXT}, "name arguments"),
        },
        "id type function",
    ),
    "StreamOptions": obj(
        {"include_usage": optional(FLAG), "include_obfuscation": optional(FLAG)}, closed=True
    ),
    "ChatMessage": obj(
        {
            "role": enum("developer", "system", "user", "assistant", "tool", "function"),
            "content": one_of(TEXT, array(obj({"type": TEXT}, "type")), {"type": "null"}),
            "name": optional(TEXT),
            "tool_calls": optional(array(ref("ToolCall"))),
            "tool_call_id": optional(TEXT),
            "reasoning_content": optional(TEXT),
            "refusal": optional(TEXT),
        },
        "role",
    ),
    "ChatTool": obj(
        {
            "type": enum("function"),
            "function": obj(
                {
                    "name": text(64, r"^[a-zA-Z0-9_-]{1,64}$", 1),
                    "description": optional(TEXT),
                    "parameters": optional(OPEN_OBJECT),
                    "strict": optional(FLAG),
                },
                "name",
            ),
        },
        "type function",
    ),
    "ResponseFormat": obj(
        {
            "type": enum("text", "json_object", "json_schema"),
            "json_schema": obj(
                {
                    "name": TEXT,
                    "schema": OPEN_OBJECT,
                    "strict": optional(FLAG),
                    "description": optional(TEXT),
                },
                "name",
            ),
        },
        "type",
    ),
    "ChatCompletionRequest": obj(_BODY, "model messages", closed=True),
    "ChatCompletion": obj(
        {
            "id": TEXT,
            "object": enum("chat.completion"),
            "created": integer(0),
            "model": TEXT,
            "choices": array(_CHOICE, 1),
            "usage": OPENAI_USAGE,
            "service_tier": optional(TEXT),
            "system_fingerprint": optional(TEXT),
        },
        "id object created model choices usage",
    ),
}
