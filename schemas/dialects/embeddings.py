"""OpenAI's Embeddings API: reading a request, so that what is wrong with it is said first.

Source: https://platform.openai.com/docs/api-reference/embeddings; openai-python 3.57.0.
"""

from dataclasses import dataclass

from schemas.dialects import fields
from schemas.dialects.canonical import InvalidRequest
from schemas.dialects.openai_errors import error_body, invalid_body, refuse_unknown
from schemas.limits import PROMPT_TOKENS_MAX

__all__ = ["EmbeddingRequest", "error_body", "invalid_body", "parse"]

_INPUTS_MAX = 2_048
_KNOWN = ("model", "input", "encoding_format", "dimensions", "user")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest:
    """What a client wants embedded."""

    model: str
    inputs: tuple[str | tuple[int, ...], ...]
    """Texts or token ids, one vector each."""
    encoding: str
    """`float` or `base64`."""
    dimensions: int | None
    user: str | None


def parse(body: object, version: str) -> EmbeddingRequest:
    """Read a body of POST /v1/embeddings; raises InvalidRequest, naming the field."""
    request = fields.as_object(body, "")
    refuse_unknown(request, _KNOWN)
    encoding, user = request.get("encoding_format"), request.get("user")
    return EmbeddingRequest(
        model=fields.as_text(fields.required(request, "model"), "model", fields.MODEL_CHARS_MAX),
        inputs=_inputs(fields.required(request, "input")),
        encoding="float"
        if encoding is None
        else fields.as_choice(encoding, "encoding_format", ("float", "base64")),
        dimensions=fields.optional_integer(request, "dimensions", 1),
        user=None if user is None else fields.as_text(user, "user", fields.LABEL_CHARS_MAX),
    )


def _inputs(value: object) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(value, str):
        return (_text(value, "input"),)
    entries = fields.as_list(value, "input", PROMPT_TOKENS_MAX)
    if not entries:
        raise InvalidRequest("input", "List should have at least 1 item")
    if isinstance(entries[0], int):
        return (_ids(entries, "input"),)
    return tuple(
        _ids(entry, f"input.{index}") if isinstance(entry, list) else _text(entry, f"input.{index}")
        for index, entry in enumerate(fields.as_list(entries, "input", _INPUTS_MAX))
    )


def _text(value: object, path: str) -> str:
    text = fields.as_text(value, path)
    if not text:
        raise InvalidRequest(path, "String should have at least 1 character")
    return text


def _ids(entries: list[object], path: str) -> tuple[int, ...]:
    if not entries:
        raise InvalidRequest(path, "List should have at least 1 item")
    return tuple(
        fields.as_integer(token_id, f"{path}.{index}", 0) for index, token_id in enumerate(entries)
    )
