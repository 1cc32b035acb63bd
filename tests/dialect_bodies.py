"""Good request bodies of every dialect that between them use all that is built."""

from typing import Final

from schemas.dialects import anthropic
from schemas.dialects.canonical import CanonicalRequest

SCHEMA: Final[dict[str, object]] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
_BREAK: Final = {"type": "ephemeral", "ttl": "5m"}
_ANTHROPIC: Final[list[dict[str, object]]] = [
    {
        "model": "m",
        "max_tokens": 2_048,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": _BREAK}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"city": "Oslo"}},
                    {"type": "tool_use", "id": "toolu_2", "name": "bash", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_2",
                        "is_error": True,
                        "content": [{"type": "text", "text": "no shell"}],
                    },
                    {
                        "type": "document",
                        "title": "T",
                        "source": {"type": "text", "media_type": "text/plain", "data": "d"},
                    },
                ],
            },
            {"role": "system", "content": "Mind the time."},
            {"role": "user", "content": "So?"},
        ],
        "tools": [
            {"name": "f", "description": "F", "input_schema": SCHEMA, "strict": True},
            {"type": "bash_20250124", "name": "bash"},
        ],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
        "thinking": {"type": "enabled", "budget_tokens": 1_024, "display": "omitted"},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
        "metadata": {"user_id": "u"},
        "stop_sequences": ["END"],
        "stream": True,
    },
    {
        "model": "m",
        "max_tokens": 8,
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello"},
        ],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
    },
]
_FUNCTION: Final = {"name": "f", "description": "F", "parameters": SCHEMA, "strict": True}
_OPENAI: Final[list[dict[str, object]]] = [
    {
        "model": "m",
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Weather?"}], "name": "n"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "Hm.",
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "f", "arguments": '{"city": "Oslo"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "user", "content": "So?"},
        ],
        "tools": [{"type": "function", "function": _FUNCTION}],
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [{"type": "function", "function": {"name": "f"}}],
            },
        },
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
        },
        "logprobs": True,
        "top_logprobs": 2,
        "n": 2,
        "logit_bias": {"5": -1},
        "stop": ["END"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "reasoning_effort": "low",
        "metadata": {"k": "v"},
        "stop_token_ids": [3],
        "bad_words": ["no"],
    },
    {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "structured_outputs": {"choice": ["a", "b"]},
        "chat_template_kwargs": {"enable_thinking": False},
    },
]
_COMPLETIONS: Final[list[dict[str, object]]] = [
    {
        "model": "m",
        "prompt": "Once upon",
        "max_tokens": 4,
        "logprobs": 2,
        "n": 2,
        "best_of": 2,
        "guided_regex": "a+",
        "temperature": 0,
    },
    {"model": "m", "prompt": [[1, 2, 3]], "stream": True, "seed": 1},
]
_RESPONSES: Final[list[dict[str, object]]] = [
    {
        "model": "m",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
            },
            {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
            {"role": "user", "content": "So?"},
        ],
        "tools": [{"type": "function"} | _FUNCTION],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
        "reasoning": {"effort": "low", "summary": "auto"},
        "metadata": {"k": "v"},
        "include": ["message.output_text.logprobs"],
        "max_output_tokens": 9,
        "store": False,
        "stream": True,
    },
    {"model": "m", "input": "Hi", "temperature": 0.1, "top_logprobs": 1},
]
_EMBEDDINGS: Final[list[dict[str, object]]] = [
    {"model": "m", "input": ["a", [1, 2]], "encoding_format": "base64", "dimensions": 4}
]

BODIES: Final[dict[str, list[dict[str, object]]]] = {
    "anthropic": _ANTHROPIC,
    "openai": _OPENAI,
    "completions": _COMPLETIONS,
    "responses": _RESPONSES,
    "embeddings": _EMBEDDINGS,
}
"""By dialect. The newer Anthropic version refuses the second body's sampling members."""


def parse_counted(body: object, version: str) -> CanonicalRequest:
    """Read a body of POST /v1/messages as count_tokens does, but for what it refuses there."""
    if isinstance(body, dict):
        body = {key: value for key, value in body.items() if key in anthropic.COUNTED}
    return anthropic.parse_count(body, version)
