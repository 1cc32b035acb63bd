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

__all__ = [
    "CACHED_TOKENS",
    "CHAT_SCHEMAS",
    "EXTENSIONS",
    "LABELS",
    "LOGIT_BIAS",
    "OPENAI_USAGE",
    "STOP",
]

_INT32: Final = 2**31 - 1
LABELS: Final[Schema] = {
    "service_tier": optional(enum("auto", "default", "flex", "scale", "priority", "fast")),
    "metadata": optional(
        {"type": "object", "maxProperties": 16, "additionalProperties": text(512)}
        | {"propertyNames": {"maxLength": 512}}
    ),
    "user": optional(text(512)),
    "safety_identifier": optional(text(512)),
    "prompt_cache_key": optional(text(512)),
    "prompt_cache_retention": optional(text(512)),
    "prompt_cache_options": optional(OPEN_OBJECT),
}
"""Members that are accepted without effect, on all generating paths of OpenAI's."""
LOGIT_BIAS: Final[Schema] = {
    "type": "object",
    "additionalProperties": number(-100, 100),
    "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,8})$"},
    "maxProperties": limits.HTTP_LOGIT_BIASES_MAX,
}
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
    "stop_token_ids": optional(array(integer(0, _INT32), 0, limits.HTTP_STOP_TOKENS_MAX)),
    "bad_words": optional(array(text(1_024, r"\S", 1), 0, limits.HTTP_BAD_WORDS_MAX)),
    "structured_outputs": optional(ref("StructuredOutputs")),
    "guided_json": ANYTHING,
    "guided_regex": optional({"type": "string", "minLength": 1}),
    "guided_choice": optional(
        array({"type": "string", "minLength": 1}, 1, limits.HTTP_OUTPUT_CHOICES_MAX)
    ),
    "guided_grammar": optional({"type": "string", "minLength": 1}),
    "skip_special_tokens": neutral("true"),
    "spaces_between_special_tokens": neutral("true"),
    "include_stop_str_in_output": neutral("false"),
    "use_beam_search": neutral("false"),
    "length_penalty": neutral("1"),
    "prompt_logprobs": neutral("null"),
    "priority": neutral("0"),
    "return_token_ids": neutral("false"),
    "add_special_tokens": neutral("vLLM's default"),
}
"""Members named as vLLM names them, of chat completions and completions."""

CACHED_TOKENS: Final = obj(
    {
        "cached_tokens": integer(0)
        | {"description": "Of the prompt's tokens, those that the workspace's earlier ones cached."}
    }
)
OPENAI_USAGE: Final = obj(
    {
        "prompt_tokens": integer(0),
        "completion_tokens": integer(0),
        "total_tokens": integer(0),
        "prompt_tokens_details": CACHED_TOKENS,
        "completion_tokens_details": obj({"reasoning_tokens": integer(0)}),
    },
    "prompt_tokens completion_tokens total_tokens",
)
_BODY: Final[Schema] = {
    "model": ref("ModelId"),
    "messages": array(ref("ChatMessage"), 1, limits.HTTP_MESSAGES_MAX),
    "max_completion_tokens": optional(integer(1, _INT32)),
    "max_tokens": optional(integer(1, _INT32)),
    "n": optional(integer(1, limits.CHOICES_MAX)),
    "stop": optional(STOP),
    "seed": optional(integer(-(2**63), 2**63 - 1)),
    "stream": optional(FLAG),
    "stream_options": optional(ref("StreamOptions")),
    "temperature": optional(number(0, 2)),
    "top_p": optional(number(0, 1)),
    "presence_penalty": optional(number(-2, 2)),
    "frequency_penalty": optional(number(-2, 2)),
    "logit_bias": optional(LOGIT_BIAS),
    "logprobs": optional(FLAG),
    "top_logprobs": optional(integer(0, limits.LOGPROBS_MAX)),
    "response_format": optional(ref("ResponseFormat")),
    "tools": optional(array(ref("ChatTool"), 0, limits.HTTP_TOOLS_MAX)),
    "tool_choice": optional(one_of(enum("none", "auto", "required"), obj({"type": TEXT}, "type"))),
    "parallel_tool_calls": optional(FLAG),
    "functions": optional(array(ref("ChatFunction"), 0, limits.HTTP_TOOLS_MAX)),
    "function_call": optional(
        one_of(enum("none", "auto"), obj({"name": TEXT}, "name", closed=True))
    ),
    "reasoning_effort": optional(enum("none", "minimal", "low", "medium", "high", "xhigh", "max")),
    "verbosity": optional(enum("low", "medium", "high")),
    "chat_template_kwargs": optional(OPEN_OBJECT),
    "store": neutral("false"),
    "modalities": neutral('["text"]'),
    "audio": neutral("null"),
    "prediction": neutral("null"),
    "web_search_options": neutral("null"),
    "moderation": neutral("null"),
    "add_generation_prompt": neutral("vLLM's default"),
    "continue_final_message": neutral("vLLM's default"),
    **LABELS,
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
                "function_call": ref("FunctionCall"),
            },
            "role content",
        ),
        "logprobs": optional(OPEN_OBJECT),
        "finish_reason": enum("stop", "length", "tool_calls", "content_filter", "function_call"),
    },
    "index message finish_reason",
)

CHAT_SCHEMAS: Final[dict[str, Schema]] = {
    "StructuredOutputs": obj(
        {
            "json": ANYTHING,
            "regex": optional(TEXT),
            "choice": optional(array(TEXT)),
            "grammar": optional(TEXT),
            "json_object": optional({"const": True}),
        },
        closed=True,
    ),
    "ToolCall": obj(
        {
            "id": TEXT,
            "type": enum("function"),
            "function": ref("FunctionCall"),
        },
        "id type function",
    ),
    "FunctionCall": obj({"name": TEXT, "arguments": TEXT}, "name arguments"),
    "StreamOptions": obj(
        {"include_usage": optional(FLAG), "include_obfuscation": optional(FLAG)}, closed=True
    ),
    "ChatMessage": obj(
        {
            "role": enum("developer", "system", "user", "assistant", "tool", "function"),
            "content": one_of(TEXT, array(obj({"type": TEXT}, "type")), {"type": "null"}),
            "name": optional(TEXT),
            "tool_calls": optional(array(ref("ToolCall"))),
            "function_call": optional(ref("FunctionCall")),
            "tool_call_id": optional(TEXT),
            "reasoning_content": optional(TEXT),
            "refusal": optional(TEXT),
        },
        "role",
    ),
    "ChatTool": obj({"type": enum("function"), "function": ref("ChatFunction")}, "type function"),
    "ChatFunction": obj(
        {
            "name": text(64, r"^[a-zA-Z0-9_-]{1,64}$", 1),
            "description": optional(TEXT),
            "parameters": optional(OPEN_OBJECT),
            "strict": optional(FLAG),
        },
        "name",
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
