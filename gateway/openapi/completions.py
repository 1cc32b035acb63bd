"""Schemas of POST /v1/completions and what it answers."""

from typing import Final

from gateway.openapi.chat import EXTENSIONS, LABELS, LOGIT_BIAS, OPENAI_USAGE, STOP
from gateway.openapi.forms import (
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
)
from schemas import limits

__all__ = ["COMPLETION_SCHEMAS"]

_INT32: Final = 2**31 - 1
_TOKENS: Final = array(integer(0, _INT32), 1)
_BODY: Final[Schema] = {
    "model": ref("ModelId"),
    "prompt": one_of(TEXT, array(TEXT, 1, 1), _TOKENS, array(_TOKENS, 1, 1)),
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
    "logprobs": optional(integer(0, limits.COMPLETION_LOGPROBS_MAX)),
    "response_format": optional(ref("ResponseFormat")),
    "echo": neutral("false"),
    "suffix": neutral("null"),
    "best_of": optional(integer(1)) | {"description": "The value of n."},
    **LABELS,
    **EXTENSIONS,
}

COMPLETION_SCHEMAS: Final[dict[str, Schema]] = {
    "CompletionRequest": obj(_BODY, "model prompt", closed=True),
    "Completion": obj(
        {
            "id": TEXT,
            "object": enum("text_completion"),
            "created": integer(0),
            "model": TEXT,
            "choices": array(
                obj(
                    {
                        "index": integer(0),
                        "text": TEXT,
                        "logprobs": optional(OPEN_OBJECT),
                        "finish_reason": enum("stop", "length", "content_filter"),
                    },
                    "index text finish_reason",
                ),
                1,
            ),
            "usage": OPENAI_USAGE,
        },
        "id object created model choices usage",
    ),
}
