"""OpenAI's Chat Completions API: reading a request, writing errors. Pure; bodies are decoded JSON.

Source: https://platform.openai.com/docs/api-reference/chat; openai-python 3.57.0. Extensions are
named as vLLM names them.
"""

from collections.abc import Mapping
from typing import Final

from schemas.dialects import fields
from schemas.dialects.canonical import CanonicalMessage, CanonicalRequest, InvalidRequest, Role
from schemas.dialects.sampling import draws
from schemas.limits import HTTP_STOP_SEQUENCE_CHARS_MAX
from schemas.requests import Dialect

_STOP_MAX = 4
_METADATA_MAX = 16
_SERVICE_TIERS = ("auto", "default", "flex", "scale", "priority", "fast")
_BUILT = frozenset(
    {
        *("model", "messages", "max_completion_tokens", "max_tokens", "stop", "seed", "stream"),
        *("stream_options", "temperature", "top_p", "presence_penalty", "frequency_penalty"),
        *("service_tier", "metadata", "user", "safety_identifier", "parallel_tool_calls"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
        *("top_k", "min_p", "repetition_penalty", "ignore_eos", "min_tokens"),  # extensions
    }
)
_LABELS = ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
_UNBUILT: Final[Mapping[str, fields.Neutral]] = {
    "n": fields.one_of(1),
    "logprobs": fields.one_of(False),
    "top_logprobs": fields.one_of(0),
    "logit_bias": fields.one_of({}),
    "response_format": fields.typed("text"),
    "tools": fields.empty,
    "tool_choice": fields.one_of("none", "auto"),
    "functions": fields.empty,
    "function_call": fields.one_of("none", "auto"),
    "modalities": fields.one_of(["text"]),
    "audio": fields.never,
    "prediction": fields.never,
    "web_search_options": fields.never,
    "store": fields.one_of(False),
    "reasoning_effort": fields.one_of("none"),
    "verbosity": fields.one_of("medium"),
    "moderation": fields.never,
}
_KNOWN = _BUILT | _UNBUILT.keys()

_ROLES: Final[Mapping[str, Role]] = {
    "developer": "system",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
}
_ROLES_UNBUILT = ("tool", "function")
_MESSAGE_UNBUILT: Final[Mapping[str, fields.Neutral]] = {
    "tool_calls": fields.empty,
    "function_call": fields.never,
    "tool_call_id": fields.never,
    "audio": fields.never,
    "refusal": fields.never,
    "annotations": fields.empty,
    "parsed": fields.never,
    "reasoning_content": fields.one_of(""),
}
_MESSAGE_KNOWN = {"role", "content", "name"} | _MESSAGE_UNBUILT.keys()
_PARTS_UNBUILT = ("image_url", "input_audio", "file", "refusal")
_PART_SEPARATOR = "\n"

_ERROR_TYPES: Final[Mapping[int, tuple[str, str | None]]] = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("permission_error", None),
    404: ("invalid_request_error", None),
    405: ("invalid_request_error", "method_not_allowed"),
    408: ("timeout_error", "request_timeout"),
    409: ("conflict_error", None),
    413: ("invalid_request_error", "request_too_large"),
    422: ("invalid_request_error", None),
    429: ("rate_limit_exceeded", "rate_limit_exceeded"),
    500: ("server_error", None),
    503: ("server_error", "service_unavailable"),
    504: ("server_error", "deadline_exceeded"),
    529: ("server_error", "overloaded"),
}


def parse(body: object, version: str) -> CanonicalRequest:
    """Read a body of POST /v1/chat/completions; raises InvalidRequest, naming the field."""
    request = fields.as_object(body, "")
    for key in request:
        if key not in _KNOWN:
            raise _unrecognized(key, key)
    fields.refuse_unbuilt(request, _UNBUILT, "")
    _check_labels(request)
    max_tokens = _max_tokens(request)
    stream = fields.optional_flag(request, "stream")
    temperature, top_p, top_k = draws(
        fields.optional_number(request, "temperature", 1.0, 0.0, 2.0),
        fields.optional_number(request, "top_p", 1.0, 0.0, 1.0),
        fields.optional_integer(request, "top_k", -1) or 0,
    )
    user = request.get("user")
    return CanonicalRequest(
        dialect=Dialect.OPENAI,
        dialect_version=version,
        model=fields.as_text(fields.required(request, "model"), "model", fields.MODEL_CHARS_MAX),
        messages=_messages(fields.required(request, "messages")),
        max_tokens=max_tokens,
        stream=stream,
        include_usage=_include_usage(request, stream),
        stop=_stop(request.get("stop")),
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=fields.optional_number(request, "min_p", 0.0, 0.0, 1.0),
        presence_penalty=fields.optional_number(request, "presence_penalty", 0.0, -2.0, 2.0),
        frequency_penalty=fields.optional_number(request, "frequency_penalty", 0.0, -2.0, 2.0),
        repetition_penalty=fields.optional_number(request, "repetition_penalty", 1.0, 0.01, 10.0),
        seed=fields.optional_integer(request, "seed", fields.INT64_MIN, fields.INT64_MAX),
        min_tokens=fields.minimum_tokens(request, max_tokens),
        ignore_eos=fields.optional_flag(request, "ignore_eos"),
        user=user if isinstance(user, str) else None,
    )


def error_body(
    status: int,
    message: str,
    request_id: str,
    *,
    code: str | None = None,
    param: str | None = None,
) -> dict[str, object]:
    """Return the error object for a status; the request id stands in `x-request-id` only."""
    fallback = ("invalid_request_error", None) if status < 500 else ("server_error", None)
    kind, default_code = _ERROR_TYPES.get(status, fallback)
    return {
        "error": {"message": message, "type": kind, "param": param, "code": code or default_code}
    }


def invalid_body(error: InvalidRequest, request_id: str) -> dict[str, object]:
    """Return the error object of a refused request."""
    return error_body(
        error.status, error.message, request_id, code=error.code, param=error.path or None
    )


def _unrecognized(path: str, key: str) -> InvalidRequest:
    return InvalidRequest(
        path,
        "unrecognized",
        message=f"Unrecognized request argument supplied: {key}",
        code="unknown_parameter",
    )


def _check_labels(request: Mapping[str, object]) -> None:
    """Check the fields that are accepted without effect."""
    for key in _LABELS:
        if request.get(key) is not None:
            fields.as_text(request[key], key, fields.LABEL_CHARS_MAX)
    if request.get("prompt_cache_options") is not None:
        fields.as_object(request["prompt_cache_options"], "prompt_cache_options")
    if request.get("service_tier") is not None:
        fields.as_choice(request["service_tier"], "service_tier", _SERVICE_TIERS)
    fields.optional_flag(request, "parallel_tool_calls")
    if request.get("metadata") is None:
        return
    metadata = fields.as_object(request["metadata"], "metadata")
    if len(metadata) > _METADATA_MAX:
        raise InvalidRequest("metadata", f"should have at most {_METADATA_MAX} entries")
    for key, value in metadata.items():
        fields.as_text(value, fields.join("metadata", key), fields.LABEL_CHARS_MAX)


def _max_tokens(request: Mapping[str, object]) -> int | None:
    current = fields.optional_integer(request, "max_completion_tokens", 1)
    legacy = fields.optional_integer(request, "max_tokens", 1)
    if current is not None and legacy is not None and current != legacy:
        raise InvalidRequest("max_tokens", "differs from max_completion_tokens; give one of them")
    return legacy if current is None else current


def _include_usage(request: Mapping[str, object], stream: bool) -> bool:
    if request.get("stream_options") is None:
        return False
    options = fields.as_object(request["stream_options"], "stream_options")
    if not stream:
        raise InvalidRequest("stream_options", "only allowed when stream is true")
    for key in options:
        if key not in ("include_usage", "include_obfuscation"):
            raise _unrecognized(f"stream_options.{key}", key)
        if options[key] is not None:
            fields.as_flag(options[key], f"stream_options.{key}")
    return options.get("include_usage") is True


def _stop(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    return fields.stop_strings(texts, "stop", _STOP_MAX, HTTP_STOP_SEQUENCE_CHARS_MAX)


def _messages(value: object) -> tuple[CanonicalMessage, ...]:
    entries = fields.as_messages(value)
    return tuple(_message(entry, f"messages.{index}") for index, entry in enumerate(entries))


def _message(entry: object, path: str) -> CanonicalMessage:
    message = fields.as_object(entry, path)
    role = fields.required(message, "role", path)
    if isinstance(role, str) and role in _ROLES_UNBUILT:
        raise InvalidRequest(f"{path}.role", f"messages of role '{role}' are not supported yet")
    role = fields.as_choice(role, f"{path}.role", _ROLES)
    for key in message:
        if key not in _MESSAGE_KNOWN:
            raise _unrecognized(f"{path}.{key}", f"{path}.{key}")
    fields.refuse_unbuilt(message, _MESSAGE_UNBUILT, path)
    if message.get("name") is not None:
        fields.as_text(message["name"], f"{path}.name", fields.LABEL_CHARS_MAX)
    text = _text(fields.required(message, "content", path), f"{path}.content")
    return CanonicalMessage(role=_ROLES[role], text=text)


def _text(content: object, path: str) -> str:
    if not isinstance(content, list):
        return fields.as_text(content, path)
    if not content:
        raise InvalidRequest(path, "List should have at least 1 item")
    return _PART_SEPARATOR.join(
        _part_text(part, f"{path}.{index}") for index, part in enumerate(content)
    )


def _part_text(entry: object, path: str) -> str:
    part = fields.as_object(entry, path)
    kind = fields.required(part, "type", path)
    if isinstance(kind, str) and kind in _PARTS_UNBUILT:
        raise InvalidRequest(path, f"content parts of type '{kind}' are not supported yet")
    fields.as_choice(kind, f"{path}.type", ("text",))
    for key in part:
        if key not in ("type", "text", "cache_control"):
            raise _unrecognized(f"{path}.{key}", f"{path}.{key}")
    return fields.as_text(fields.required(part, "text", path), f"{path}.text")
