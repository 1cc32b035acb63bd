"""Anthropic's Messages API: reading a request, writing errors. Pure; bodies are decoded JSON.

Source: https://docs.anthropic.com/en/api/messages; anthropic-python 2.14.0 for 2026-10-21.
"""

from collections.abc import Mapping
from typing import Final

from schemas.dialects import fields
from schemas.dialects.anthropic_blocks import BlockReader, Verify
from schemas.dialects.anthropic_caching import CacheBreakpoints
from schemas.dialects.anthropic_thinking import check_thinking, read_output, read_thinking
from schemas.dialects.anthropic_tools import read_tool_choice, read_tools
from schemas.dialects.anthropic_turns import read_turns
from schemas.dialects.canonical import CanonicalRequest, InvalidRequest
from schemas.dialects.sampling import draws
from schemas.limits import HTTP_STOP_SEQUENCE_CHARS_MAX, HTTP_STOP_SEQUENCES_MAX
from schemas.requests import Dialect

VERSIONS: Final = ("2023-06-01", "2026-10-21")

_STRICT_VERSION = "2026-10-21"
_SAMPLING_FIELDS = ("temperature", "top_p", "top_k")
_KEEPING = "clear_thinking_20251015"
_BUILT = frozenset(
    {
        *("model", "max_tokens", "messages", "system", "stop_sequences", "stream"),
        *_SAMPLING_FIELDS,
        *("metadata", "service_tier", "cache_control"),
        *("tools", "tool_choice", "thinking", "output_config", "output_format"),
        *("seed", "ignore_eos", "min_tokens"),  # extensions
    }
)


def _keeps_context(value: object) -> bool:
    """Tell whether `context_management` asks for no change: agents say so in so many words."""
    edits = value.get("edits") if isinstance(value, dict) and len(value) == 1 else None
    return value == {} or (
        isinstance(edits, list)
        and all(
            edit in ({"type": _KEEPING, "keep": "all"}, {"type": _KEEPING, "keep": {"type": "all"}})
            for edit in edits
        )
    )


_UNBUILT: Final[Mapping[str, fields.Neutral]] = {
    "speed": fields.one_of("standard"),
    "inference_geo": fields.never,
    "container": fields.never,
    "diagnostics": fields.empty,
    "mcp_servers": fields.empty,
    "context_management": _keeps_context,
    "compaction": fields.never,
    "fallbacks": fields.empty,
    "fallback_credit_token": fields.never,
    "billing_policy": fields.never,
}
_KNOWN = _BUILT | _UNBUILT.keys() | {"thread"}
COUNTED: Final = frozenset(
    {
        *("model", "messages", "system", "tools", "tool_choice", "thinking", "cache_control"),
        *("output_config", "output_format", "speed"),
        *("mcp_servers", "context_management", "compaction", "billing_policy", "thread"),
    }
)
"""Members that count_tokens knows: what makes a prompt, nothing of how a reply is drawn."""

_ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def _foreign(_thinking: str, _signature: str) -> bool:
    return False


def check_version(header: str | None) -> str:
    """Return the `anthropic-version` asked for; raises InvalidRequest if missing or unknown."""
    if header is None:
        raise InvalidRequest("anthropic-version", "header is required")
    if header not in VERSIONS:
        raise InvalidRequest(
            "anthropic-version", f"'{header}' is unknown; expected one of {', '.join(VERSIONS)}"
        )
    return header


def parse(body: object, version: str, verify: Verify = _foreign) -> CanonicalRequest:
    """Read a body of POST /v1/messages.

    Args:
        verify: tells whether a thinking block's signature is ours; thinking of others is dropped.

    Raises: InvalidRequest, naming the field; `thread` gets the answer that makes clients fall back
    to whole histories.
    """
    request = fields.as_object(body, "")
    if request.get("thread") is not None:
        raise InvalidRequest(
            "",
            "thread is not supported",
            code="thread_unsupported_request",
            details={"unsupported": []},
        )
    known = _KNOWN.difference(_SAMPLING_FIELDS) if version == _STRICT_VERSION else _KNOWN
    fields.refuse_extra(request, known, "")
    return _read(request, version, _max_tokens(request), verify)


def parse_count(body: object, version: str, verify: Verify = _foreign) -> CanonicalRequest:
    """Read a body of POST /v1/messages/count_tokens: what makes a prompt; `thread` passes."""
    request = fields.as_object(body, "")
    fields.refuse_extra(request, COUNTED, "")
    return _read(request, version, None, verify)


def error_body(
    status: int,
    message: str,
    request_id: str,
    *,
    code: str | None = None,
    param: str | None = None,
    details: dict[str, object] | None = None,
) -> dict[str, object]:
    """Return the error object for a status; `code` becomes `details.error_code`.

    `param` has no place in this dialect; the message names the field.
    """
    fallback = "invalid_request_error" if status < 500 else "api_error"
    error: dict[str, object] = {"type": _ERROR_TYPES.get(status, fallback), "message": message}
    if code is not None:
        error["details"] = {"error_code": code} | (details or {})
    elif details is not None:
        error["details"] = details
    return {"type": "error", "error": error, "request_id": request_id}


def invalid_body(error: InvalidRequest, request_id: str) -> dict[str, object]:
    """Return the error object of a refused request."""
    return error_body(
        error.status, error.message, request_id, code=error.code, details=error.details
    )


def _read(
    request: dict[str, object], version: str, max_tokens: int | None, verify: Verify
) -> CanonicalRequest:
    fields.refuse_unbuilt(request, _UNBUILT, "")
    model = fields.as_text(fields.required(request, "model"), "model", fields.MODEL_CHARS_MAX)
    temperature, top_p, top_k = draws(
        fields.optional_number(request, "temperature", 1.0, 0.0, 1.0),
        fields.optional_number(request, "top_p", 1.0, 0.0, 1.0),
        fields.optional_integer(request, "top_k", 0) or 0,
    )
    if request.get("service_tier") is not None:
        fields.as_choice(request["service_tier"], "service_tier", ("auto", "standard_only"))
    breakpoints = CacheBreakpoints()
    tools = read_tools(request.get("tools"), breakpoints)
    choice = read_tool_choice(request.get("tool_choice"), tools)
    thinking = read_thinking(request.get("thinking"), max_tokens)
    strict = version == _STRICT_VERSION
    messages = read_turns(
        request, BlockReader(strict=strict, verify=verify, breakpoints=breakpoints)
    )
    breakpoints.whole(request.get("cache_control"))
    check_thinking(thinking, choice, messages)
    return CanonicalRequest(
        dialect=Dialect.ANTHROPIC,
        dialect_version=version,
        model=model,
        messages=messages,
        max_tokens=max_tokens,
        stream=fields.optional_flag(request, "stream"),
        stop=_stop_sequences(request) if max_tokens != 0 else (),
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=fields.optional_integer(request, "seed", fields.INT64_MIN, fields.INT64_MAX),
        min_tokens=fields.minimum_tokens(request, max_tokens),
        ignore_eos=fields.optional_flag(request, "ignore_eos"),
        tools=tools,
        tool_choice=choice,
        output=read_output(request),
        thinking=thinking,
        user=_user(request),
    )


def _max_tokens(request: Mapping[str, object]) -> int:
    max_tokens = fields.as_integer(fields.required(request, "max_tokens"), "max_tokens", 0)
    if max_tokens == 0:
        _refuse_to_show(request)
    return max_tokens


def _refuse_to_show(request: Mapping[str, object]) -> None:
    """Refuse what `max_tokens: 0`, which puts a prompt into the cache, cannot come with."""
    choice = request.get("tool_choice")
    thinking, output = request.get("thinking"), request.get("output_config")
    for field, wanted in (
        ("stream", request.get("stream") is True),
        ("thinking", isinstance(thinking, dict) and thinking.get("type") == "enabled"),
        ("output_config.format", isinstance(output, dict) and output.get("format") is not None),
        ("output_format", request.get("output_format") is not None),
        ("tool_choice", isinstance(choice, dict) and choice.get("type") in ("any", "tool")),
    ):
        if wanted:
            raise InvalidRequest(field, "is not allowed when max_tokens is 0")


def _stop_sequences(request: Mapping[str, object]) -> tuple[str, ...]:
    value = request.get("stop_sequences")
    if value is None:
        return ()
    stops = fields.stop_strings(
        value, "stop_sequences", HTTP_STOP_SEQUENCES_MAX, HTTP_STOP_SEQUENCE_CHARS_MAX
    )
    if any(stop.isspace() for stop in stops):
        raise InvalidRequest("stop_sequences", "each stop sequence must contain non-whitespace")
    return stops


def _user(request: Mapping[str, object]) -> str | None:
    if request.get("metadata") is None:
        return None
    metadata = fields.as_object(request["metadata"], "metadata")
    fields.refuse_extra(metadata, ("user_id",), "metadata")
    user = metadata.get("user_id")
    if user is None:
        return None
    return fields.as_text(user, "metadata.user_id", fields.LABEL_CHARS_MAX)
