"""OpenAI's Responses API without state on the server: each request brings its whole input.

A response can be read again by its id for as long as its log is kept, so `store` may be true, which
is what it means where it is absent. Everything else that refers to earlier responses is refused.

Source: https://platform.openai.com/docs/api-reference/responses; openai-python 3.57.0.
"""

from collections.abc import Mapping
from typing import Final

from schemas.dialects import fields
from schemas.dialects.canonical import (
    CanonicalMessage,
    CanonicalRequest,
    Thinking,
)
from schemas.dialects.json_texts import json_text
from schemas.dialects.openai_errors import error_body, invalid_body, refuse_unknown
from schemas.dialects.openai_formats import read_response_format
from schemas.dialects.openai_members import LABELS, includes_usage, read_labels, sampled
from schemas.dialects.openai_thinking import read_effort
from schemas.dialects.openai_tools import read_tool_choice, read_tools
from schemas.dialects.responses_items import read_input
from schemas.limits import LOGPROBS_MAX
from schemas.requests import Dialect

__all__ = ["error_body", "invalid_body", "parse"]

_BUILT = LABELS | {
    *("model", "input", "instructions", "max_output_tokens", "max_tool_calls", "store", "stream"),
    *("stream_options", "temperature", "top_p", "tools", "tool_choice", "parallel_tool_calls"),
    *("text", "reasoning", "include", "top_logprobs"),
    *("seed", "ignore_eos", "min_tokens"),  # extensions
}
_UNSUPPORTED: Final[Mapping[str, fields.Neutral]] = {
    "previous_response_id": fields.never,
    "conversation": fields.never,
    "background": fields.one_of(False),
    "background_options": fields.never,
    "prompt": fields.never,
    "truncation": fields.one_of("disabled"),
    "context_management": fields.empty,
    "moderation": fields.never,
    "image": fields.never,
    "access_programs": fields.never,
}
_KNOWN = _BUILT | _UNSUPPORTED.keys()
_INCLUDES = (
    *("file_search_call.results", "web_search_call.results", "web_search_call.action.sources"),
    *("message.input_image.image_url", "computer_call_output.output.image_url"),
    *("code_interpreter_call.outputs", "reasoning.encrypted_content"),
    "message.output_text.logprobs",
)
"""What may be asked for to be included; all but the last is about things that never occur here."""
_SUMMARIES = ("auto", "concise", "detailed")
_REPEATED: Final[Mapping[str, object]] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "store": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""Members that a response repeats, with their defaults."""


def parse(body: object, version: str) -> CanonicalRequest:
    """Read a body of POST /v1/responses; raises InvalidRequest, naming the field."""
    request = fields.as_object(body, "")
    refuse_unknown(request, _KNOWN)
    fields.refuse_unbuilt(request, _UNSUPPORTED, "")
    user = read_labels(request)
    stream = fields.optional_flag(request, "stream")
    includes_usage(request, stream)
    for key in ("store", "max_tool_calls"):
        _check_unused(request, key)
    text = _settings(request, "text", ("format", "verbosity"))
    reasoning = _settings(
        request, "reasoning", ("effort", "summary", "generate_summary", "context", "mode")
    )
    if text.get("verbosity") is not None:
        fields.as_choice(text["verbosity"], "text.verbosity", ("low", "medium", "high"))
    tools = read_tools(request.get("tools"), flat=True)
    return CanonicalRequest(
        dialect=Dialect.RESPONSES,
        dialect_version=version,
        model=fields.as_text(fields.required(request, "model"), "model", fields.MODEL_CHARS_MAX),
        messages=_messages(request),
        max_tokens=_max_tokens(request),
        stream=stream,
        tools=tools,
        tool_choice=read_tool_choice(request, tools, flat=True),
        logprobs=_logprobs(request),
        output=read_response_format(text.get("format"), "text.format", flat=True),
        thinking=_thinking(reasoning),
        echo=_echo(request, text, reasoning),
        user=user,
        **sampled(request, _max_tokens(request)),
    )


def _max_tokens(request: Mapping[str, object]) -> int | None:
    return fields.optional_integer(request, "max_output_tokens", 1)


def _messages(request: Mapping[str, object]) -> tuple[CanonicalMessage, ...]:
    turns = read_input(fields.required(request, "input"))
    instructions = request.get("instructions")
    if instructions is None:
        return turns
    words = fields.as_text(instructions, "instructions")
    return (CanonicalMessage(role="system", text=words), *turns) if words else turns


def _settings(request: Mapping[str, object], key: str, known: tuple[str, ...]) -> dict[str, object]:
    if request.get(key) is None:
        return {}
    settings = fields.as_object(request[key], key)
    refuse_unknown(settings, known, key)
    return settings


def _thinking(reasoning: Mapping[str, object]) -> Thinking | None:
    for key in ("summary", "generate_summary"):
        if reasoning.get(key) is not None:
            fields.as_choice(reasoning[key], f"reasoning.{key}", _SUMMARIES)
    fields.refuse_unbuilt(
        reasoning,
        {"context": fields.one_of("auto"), "mode": fields.one_of("standard")},
        "reasoning",
    )
    return read_effort(reasoning.get("effort"), "reasoning.effort")


def _check_unused(request: Mapping[str, object], key: str) -> None:
    """Check a member that has no effect here: `store`, and a bound on calls of built-in tools."""
    value = request.get(key)
    if value is not None and key == "store":
        fields.as_flag(value, key)
    elif value is not None:
        fields.as_integer(value, key, 1)


def _logprobs(request: Mapping[str, object]) -> int | None:
    """Return how many top log probabilities are asked for, by `include` or by their number."""
    top = fields.optional_integer(request, "top_logprobs", 0, LOGPROBS_MAX) or 0
    included = request.get("include")
    if included is None:
        return top or None
    entries = fields.as_list(included, "include", len(_INCLUDES))
    asked = [
        fields.as_choice(entry, f"include.{index}", _INCLUDES)
        for index, entry in enumerate(entries)
    ]
    return top if top or _INCLUDES[-1] in asked else None


def _echo(
    request: Mapping[str, object], text: Mapping[str, object], reasoning: Mapping[str, object]
) -> str:
    """Return what the response repeats of its request, as JSON."""
    said: dict[str, object] = {
        key: default if request.get(key) is None else request[key]
        for key, default in _REPEATED.items()
    }
    said["text"] = {"format": {"type": "text"}} | {
        key: value for key, value in text.items() if value is not None
    }
    said["reasoning"] = {
        "effort": reasoning.get("effort"),
        "summary": reasoning.get("summary"),
    }
    said["tools"] = [
        {"description": None, "parameters": None, "strict": False} | tool
        for tool in fields.as_list(said["tools"], "tools")
        if isinstance(tool, dict)
    ]
    return json_text(said, "")
