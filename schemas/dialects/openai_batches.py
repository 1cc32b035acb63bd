"""OpenAI's Batch and Files APIs: reading what makes a batch or a file. Pure.

Source: https://platform.openai.com/docs/api-reference/batch; openai-python 3.57.0.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from schemas import limits
from schemas.dialects import fields
from schemas.dialects.canonical import InvalidRequest
from schemas.dialects.openai_errors import refuse_unknown
from schemas.dialects.openai_members import read_metadata

__all__ = ["ENDPOINTS", "BatchWish", "read_batch", "read_file_life_ms", "read_purpose"]

ENDPOINTS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses")

_BUILT: Final = ("input_file_id", "endpoint", "completion_window", "metadata")
_UNBUILT: Final[Mapping[str, fields.Neutral]] = {"output_expires_after": fields.never}
_PURPOSE: Final = "batch"
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"


class BatchWish(Struct, frozen=True, kw_only=True):
    """What a client asks for."""

    input_file_id: str
    endpoint: str
    metadata: str | None
    """JSON object of strings."""


def read_batch(body: object) -> BatchWish:
    """Read a body of POST /v1/batches. Raises InvalidRequest, naming the field."""
    request = fields.as_object(body, "")
    refuse_unknown(request, {*_BUILT, *_UNBUILT})
    fields.refuse_unbuilt(request, _UNBUILT, "")
    input_file_id = fields.as_text(
        fields.required(request, "input_file_id"), "input_file_id", fields.LABEL_CHARS_MAX
    )
    endpoint = fields.as_choice(fields.required(request, "endpoint"), "endpoint", ENDPOINTS)
    window = fields.required(request, "completion_window")
    fields.as_choice(window, "completion_window", ("24h",))
    labels = request.get("metadata")
    return BatchWish(
        input_file_id=input_file_id,
        endpoint=endpoint,
        metadata=None if labels is None else msgspec.json.encode(read_metadata(labels)).decode(),
    )


def read_purpose(form: Mapping[str, str]) -> str:
    """Return what a file is for. Raises InvalidRequest."""
    purpose = fields.required(form, "purpose")
    return fields.as_choice(purpose, "purpose", (_PURPOSE,))


def read_file_life_ms(form: Mapping[str, str]) -> int:
    """Return for how long a file is to be kept. Raises InvalidRequest."""
    known = {"purpose", _ANCHOR, _SECONDS}
    refuse_unknown(form, known)
    if _SECONDS not in form and _ANCHOR not in form:
        return limits.BATCH_RESULTS_KEPT_MS
    fields.as_choice(fields.required(form, _ANCHOR), _ANCHOR, ("created_at",))
    text = str(fields.required(form, _SECONDS))
    most = limits.BATCH_RESULTS_KEPT_MS // 1_000
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most))):
        raise InvalidRequest(_SECONDS, "Input should be a valid integer")
    return 1_000 * fields.as_integer(int(text), _SECONDS, limits.FILE_LIFE_S_MIN, most)
