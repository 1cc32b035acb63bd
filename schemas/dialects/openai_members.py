"""Members that OpenAI's generating endpoints share: sampling, stops, labels, stream options.

Owns their bounds and vLLM's extensions of them. Which endpoint knows which member is said there.
"""

from collections.abc import Mapping
from typing import Final, TypedDict

from schemas.dialects import fields
from schemas.dialects.canonical import InvalidRequest
from schemas.dialects.openai_errors import refuse_unknown
from schemas.dialects.sampling import draws
from schemas.limits import (
    CHOICES_MAX,
    HTTP_BAD_WORDS_MAX,
    HTTP_LOGIT_BIASES_MAX,
    HTTP_STOP_SEQUENCE_CHARS_MAX,
    HTTP_STOP_TOKENS_MAX,
)
from schemas.requests import LogitBias

SAMPLING: Final = frozenset(
    {
        *("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop", "n"),
        *("logit_bias", "stream", "stream_options", "user"),
        *("top_k", "min_p", "repetition_penalty", "ignore_eos", "min_tokens"),  # extensions
        *("stop_token_ids", "bad_words"),
    }
)
"""Members that `sampled` and `streamed` read."""
LABELS: Final = frozenset(
    {
        *("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
        *("prompt_cache_options", "service_tier", "metadata"),
    }
)
"""Members that are accepted without effect."""
VLLM_DEFAULTS: Final[Mapping[str, fields.Neutral]] = {
    "skip_special_tokens": fields.one_of(True),
    "spaces_between_special_tokens": fields.one_of(True),
    "include_stop_str_in_output": fields.one_of(False),
    "use_beam_search": fields.one_of(False),
    "length_penalty": fields.one_of(1.0, 1),
    "prompt_logprobs": fields.never,
    "priority": fields.one_of(0),
    "return_token_ids": fields.one_of(False),
}
"""Further members of vLLM that its clients send with the values that they have anyway."""

_TEXT_LABELS = ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
_STOP_MAX = 4
_METADATA_MAX = 16
_BIAS_MAX = 100.0
_SERVICE_TIERS = ("auto", "default", "flex", "scale", "priority", "fast")


class Sampled(TypedDict):
    """Members of a CanonicalRequest that say how its tokens are drawn."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    seed: int | None
    min_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    bad_words: tuple[str, ...]
    logit_bias: tuple[LogitBias, ...]
    choices: int


def sampled(request: Mapping[str, object], max_tokens: int | None) -> Sampled:
    """Return what says how the request's tokens are drawn. Raises InvalidRequest."""
    temperature, top_p, top_k = draws(
        fields.optional_number(request, "temperature", 1.0, 0.0, 2.0),
        fields.optional_number(request, "top_p", 1.0, 0.0, 1.0),
        fields.optional_integer(request, "top_k", -1) or 0,
    )
    return Sampled(
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
        stop=_stop(request.get("stop")),
        stop_token_ids=_stop_tokens(request.get("stop_token_ids")),
        bad_words=_bad_words(request.get("bad_words")),
        logit_bias=_logit_bias(request.get("logit_bias")),
        choices=fields.optional_integer(request, "n", 1, CHOICES_MAX) or 1,
    )


def includes_usage(request: Mapping[str, object], stream: bool) -> bool:
    """Return whether the stream ends with its usage. Raises InvalidRequest."""
    if request.get("stream_options") is None:
        return False
    options = fields.as_object(request["stream_options"], "stream_options")
    if not stream:
        raise InvalidRequest("stream_options", "only allowed when stream is true")
    refuse_unknown(options, ("include_usage", "include_obfuscation"), "stream_options")
    for key, value in options.items():
        if value is not None:
            fields.as_flag(value, f"stream_options.{key}")
    return options.get("include_usage") is True


def read_labels(request: Mapping[str, object]) -> str | None:
    """Check the members without effect, and return the user. Raises InvalidRequest."""
    for key in _TEXT_LABELS:
        if request.get(key) is not None:
            fields.as_text(request[key], key, fields.LABEL_CHARS_MAX)
    if request.get("prompt_cache_options") is not None:
        fields.as_object(request["prompt_cache_options"], "prompt_cache_options")
    if request.get("service_tier") is not None:
        fields.as_choice(request["service_tier"], "service_tier", _SERVICE_TIERS)
    if request.get("metadata") is not None:
        read_metadata(request["metadata"])
    user = request.get("user")
    return user if isinstance(user, str) else None


def read_metadata(value: object) -> dict[str, object]:
    """Return a client's own labels. Raises InvalidRequest."""
    metadata = fields.as_object(value, "metadata")
    if len(metadata) > _METADATA_MAX:
        raise InvalidRequest("metadata", f"should have at most {_METADATA_MAX} entries")
    for key, text in metadata.items():
        fields.as_text(key, fields.join("metadata", key), fields.LABEL_CHARS_MAX)
        fields.as_text(text, fields.join("metadata", key), fields.LABEL_CHARS_MAX)
    return metadata


def _stop(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    return fields.stop_strings(texts, "stop", _STOP_MAX, HTTP_STOP_SEQUENCE_CHARS_MAX)


def _stop_tokens(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    ids = fields.as_list(value, "stop_token_ids", HTTP_STOP_TOKENS_MAX)
    return tuple(
        fields.as_integer(token_id, f"stop_token_ids.{index}", 0)
        for index, token_id in enumerate(ids)
    )


def _bad_words(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    words = []
    for index, entry in enumerate(fields.as_list(value, "bad_words", HTTP_BAD_WORDS_MAX)):
        word = fields.as_text(entry, f"bad_words.{index}", HTTP_STOP_SEQUENCE_CHARS_MAX)
        if not word.strip():
            raise InvalidRequest(f"bad_words.{index}", "must contain non-whitespace")
        words.append(word)
    return tuple(dict.fromkeys(words))


def _logit_bias(value: object) -> tuple[LogitBias, ...]:
    if value is None:
        return ()
    biases = fields.as_object(value, "logit_bias")
    if len(biases) > HTTP_LOGIT_BIASES_MAX:
        raise InvalidRequest("logit_bias", f"should have at most {HTTP_LOGIT_BIASES_MAX} entries")
    read = []
    for key, bias in biases.items():
        path = fields.join("logit_bias", key)
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and str(int(key)) == key):
            raise InvalidRequest(path, "keys should be token ids")
        token_id = fields.as_integer(int(key), path, 0)
        amount = fields.as_number(bias, path, -_BIAS_MAX, _BIAS_MAX)
        read.append(LogitBias(token_id=token_id, bias=amount))
    return tuple(read)
