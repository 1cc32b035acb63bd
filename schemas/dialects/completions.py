"""OpenAI's older Completions API, as load tools use it: a prompt is continued as it stands.

Source: https://platform.openai.com/docs/api-reference/completions; openai-python 3.57.0. Extensions
are named as vLLM names them.
"""

from collections.abc import Mapping
from typing import Final

from schemas.dialects import fields
from schemas.dialects.canonical import CanonicalRequest, InvalidRequest
from schemas.dialects.openai_errors import error_body, invalid_body, refuse_unknown
from schemas.dialects.openai_formats import EXTENSIONS, read_output, read_response_format
from schemas.dialects.openai_members import (
    LABELS,
    SAMPLING,
    VLLM_DEFAULTS,
    includes_usage,
    read_labels,
    sampled,
)
from schemas.limits import COMPLETION_LOGPROBS_MAX, PROMPT_TOKENS_MAX
from schemas.requests import Dialect

__all__ = ["error_body", "invalid_body", "parse"]

_MAX_TOKENS_DEFAULT = 16
_TOKEN_ID_MAX = fields.COUNT_MAX
_BUILT = (
    SAMPLING
    | LABELS
    | EXTENSIONS
    | {"model", "prompt", "max_tokens", "logprobs", "best_of", "response_format"}
)
_UNSUPPORTED: Final[Mapping[str, fields.Neutral]] = {
    **VLLM_DEFAULTS,
    "echo": fields.one_of(False),
    "suffix": fields.one_of(""),
    "add_special_tokens": fields.one_of(True),
}
_KNOWN = _BUILT | _UNSUPPORTED.keys()


def parse(body: object, version: str) -> CanonicalRequest:
    """Read a body of POST /v1/completions; raises InvalidRequest, naming the field."""
    request = fields.as_object(body, "")
    refuse_unknown(request, _KNOWN)
    fields.refuse_unbuilt(request, _UNSUPPORTED, "")
    user = read_labels(request)
    stream = fields.optional_flag(request, "stream")
    form = read_response_format(request.get("response_format"), "response_format", flat=False)
    given = fields.optional_integer(request, "max_tokens", 1)
    max_tokens = _MAX_TOKENS_DEFAULT if given is None else given
    canonical = CanonicalRequest(
        dialect=Dialect.COMPLETIONS,
        dialect_version=version,
        model=fields.as_text(fields.required(request, "model"), "model", fields.MODEL_CHARS_MAX),
        messages=(),
        prompt=_prompt(fields.required(request, "prompt")),
        max_tokens=max_tokens,
        stream=stream,
        include_usage=includes_usage(request, stream),
        logprobs=fields.optional_integer(request, "logprobs", 0, COMPLETION_LOGPROBS_MAX),
        output=read_output(request, form),
        user=user,
        **sampled(request, max_tokens),
    )
    best_of = fields.optional_integer(request, "best_of", 1)
    if best_of is not None and best_of != canonical.choices:
        raise InvalidRequest("best_of", f"only {canonical.choices}, the value of n, is supported")
    return canonical


def _prompt(value: object) -> str | tuple[int, ...]:
    """Return the one prompt: a text or token ids, alone or in a list."""
    path = "prompt"
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise InvalidRequest(path, "only one prompt a request is supported")
        value, path = value[0], "prompt.0"
    if isinstance(value, str):
        return fields.as_text(value, path)
    if not isinstance(value, list) or not value:
        raise InvalidRequest(path, "Input should be a text or a list of token ids, not empty")
    ids = fields.as_list(value, path, PROMPT_TOKENS_MAX)
    # Long lists are checked by loops that run in C; where something is wrong, it is named.
    if set(map(type, ids)) != {int} or not _are_ids(ids):
        for index, token_id in enumerate(ids):
            fields.as_integer(token_id, f"{path}.{index}", 0, _TOKEN_ID_MAX)
    return tuple(token_id for token_id in ids if isinstance(token_id, int))


def _are_ids(numbers: list[object]) -> bool:
    ints = [number for number in numbers if isinstance(number, int)]
    return min(ints) >= 0 and max(ints) <= _TOKEN_ID_MAX
