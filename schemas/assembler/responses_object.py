"""The Response object of OpenAI's Responses API, at any moment of its life.

Owns its members and their defaults; what the request said of itself comes from the header's `echo`.
"""

from collections.abc import Sequence

import msgspec

from schemas.assembler.content import TokenCounts
from schemas.requests import ReplyHeader

__all__ = ["response_object"]


def response_object(
    header: ReplyHeader,
    reply_id: str,
    *,
    status: str,
    incomplete: str | None,
    output: Sequence[dict[str, object]],
    counts: TokenCounts | None,
) -> dict[str, object]:
    """Return the object; `incomplete` says why it is, `counts` are None until it has ended."""
    response: dict[str, object] = {
        "id": reply_id,
        "object": "response",
        "created_at": header.created_ms // 1_000,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None if incomplete is None else {"reason": incomplete},
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "model": header.model_shown,
        "output": list(output),
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None if counts is None else _usage(header, counts),
        "user": None,
    }
    # What the reply is made of is never the request's to say.
    said = msgspec.json.decode(header.echo, type=dict[str, object]) if header.echo else {}
    return response | {name: said[name] for name in said if name in _ECHOED}


_ECHOED = frozenset(
    {
        *("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "reasoning"),
        *("store", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p"),
        *("truncation", "user", "safety_identifier", "prompt_cache_key", "max_tool_calls"),
    }
)


def _usage(header: ReplyHeader, counts: TokenCounts) -> dict[str, object]:
    return {
        "input_tokens": header.prompt_tokens,
        "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0},
        "output_tokens": counts.output,
        "output_tokens_details": {"reasoning_tokens": counts.thinking},
        "total_tokens": header.prompt_tokens + counts.output,
    }
