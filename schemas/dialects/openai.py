"""OpenAI's Chat Completions API: reading a request, writing errors. Pure; bodies are decoded JSON.

Source: https://platform.openai.com/docs/api-reference/chat; openai-python 3.57.0. Extensions are
named as vLLM names them.
"""

from collections.abc import Mapping
from typing import Final

from schemas.dialects import fields
from schemas.dialects.canonical import CanonicalRequest, InvalidRequest
from schemas.dialects.openai_errors import error_body, invalid_body, refuse_unknown
from schemas.dialects.openai_formats import EXTENSIONS, read_output, read_response_format
from schemas.dialects.openai_functions import (
    FUNCTIONS_VERSION,
    asks_in_functions,
    read_function_choice,
    read_functions,
)
from schemas.dialects.openai_members import (
    LABELS,
    SAMPLING,
    VLLM_DEFAULTS,
    includes_usage,
    read_labels,
    sampled,
)
from schemas.dialects.openai_messages import read_messages
from schemas.dialects.openai_thinking import read_effort, read_template_settings
from schemas.dialects.openai_tools import read_tool_choice, read_tools
from schemas.limits import LOGPROBS_MAX
from schemas.requests import Dialect

__all__ = ["error_body", "invalid_body", "parse"]

_BUILT = (
    SAMPLING
    | LABELS
    | EXTENSIONS
    | {
        *("model", "messages", "max_completion_tokens", "max_tokens", "logprobs", "top_logprobs"),
        *("tools", "tool_choice", "parallel_tool_calls", "response_format"),
        *("functions", "function_call"),
        *("reasoning_effort", "verbosity", "chat_template_kwargs"),
    }
)
_UNSUPPORTED: Final[Mapping[str, fields.Neutral]] = {
    **VLLM_DEFAULTS,
    "modalities": fields.one_of(["text"]),
    "audio": fields.never,
    "prediction": fields.never,
    "web_search_options": fields.never,
    "store": fields.one_of(False),
    "moderation": fields.never,
    "add_generation_prompt": fields.one_of(True),
    "continue_final_message": fields.one_of(False),
    "add_special_tokens": fields.one_of(False),
}
_KNOWN = _BUILT | _UNSUPPORTED.keys()


def parse(body: object, version: str) -> CanonicalRequest:
    """Read a body of POST /v1/chat/completions; raises InvalidRequest, naming the field."""
    request = fields.as_object(body, "")
    refuse_unknown(request, _KNOWN)
    fields.refuse_unbuilt(request, _UNSUPPORTED, "")
    user = read_labels(request)
    stream = fields.optional_flag(request, "stream")
    if request.get("verbosity") is not None:
        fields.as_choice(request["verbosity"], "verbosity", ("low", "medium", "high"))
    if asks_in_functions(request):
        version = FUNCTIONS_VERSION
        tools = read_functions(request.get("functions"))
        tool_choice = read_function_choice(request.get("function_call"), tools)
    else:
        tools = read_tools(request.get("tools"), flat=False)
        tool_choice = read_tool_choice(request, tools, flat=False)
    form = read_response_format(request.get("response_format"), "response_format", flat=False)
    return CanonicalRequest(
        dialect=Dialect.OPENAI,
        dialect_version=version,
        model=fields.as_text(fields.required(request, "model"), "model", fields.MODEL_CHARS_MAX),
        messages=read_messages(fields.required(request, "messages")),
        max_tokens=_max_tokens(request),
        stream=stream,
        include_usage=includes_usage(request, stream),
        logprobs=_logprobs(request),
        tools=tools,
        tool_choice=tool_choice,
        output=read_output(request, form),
        thinking=read_template_settings(request.get("chat_template_kwargs"))
        or read_effort(request.get("reasoning_effort"), "reasoning_effort"),
        user=user,
        **sampled(request, _max_tokens(request)),
    )


def _max_tokens(request: Mapping[str, object]) -> int | None:
    current = fields.optional_integer(request, "max_completion_tokens", 1)
    legacy = fields.optional_integer(request, "max_tokens", 1)
    if current is not None and legacy is not None and current != legacy:
        raise InvalidRequest("max_tokens", "differs from max_completion_tokens; give one of them")
    return legacy if current is None else current


def _logprobs(request: Mapping[str, object]) -> int | None:
    top = fields.optional_integer(request, "top_logprobs", 0, LOGPROBS_MAX)
    if fields.optional_flag(request, "logprobs"):
        return top or 0
    if top:
        raise InvalidRequest("top_logprobs", "is only allowed when logprobs is true")
    return None
