"""Answers as JSON: errors in the dialect of the call, and plain values.

Owns the shape of what is sent whole. Streams stand in `streaming.py`, statuses in `errors.py`.
"""

import msgspec
from starlette.responses import Response

from gateway.call import Call
from gateway.errors import BodyTooLarge, BodyTooSlow, MethodNotAllowed, Shown, show
from schemas.dialects import anthropic, openai
from schemas.dialects.canonical import InvalidRequest
from schemas.requests import Dialect

__all__ = ["error_answer", "error_object", "json_answer"]


def json_answer(
    value: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Return a JSON response."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def error_answer(call: Call, error: Exception) -> Response:
    """Return the response for an error that came before the response had started."""
    call.reason = call.reason or type(error).__name__
    if isinstance(error, InvalidRequest):
        return json_answer(_invalid_object(call, error), error.status)
    shown = show(error)
    headers = {}
    if shown.retry_after_s is not None:
        headers["retry-after"] = str(shown.retry_after_s)
    if not shown.may_retry:
        headers["x-should-retry"] = "false"
    if isinstance(error, (BodyTooLarge, BodyTooSlow)):
        headers["connection"] = "close"  # what is left of the body is not read
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = error.allow
    return json_answer(error_object(call, shown), shown.status, headers)


def error_object(call: Call, shown: Shown) -> dict[str, object]:
    """Return the dialect's error object."""
    request_id = call.shown_id
    if call.dialect is Dialect.ANTHROPIC:
        return anthropic.error_body(
            shown.status, shown.message, request_id, code=shown.details_code
        )
    return openai.error_body(
        shown.status,
        shown.message,
        request_id,
        code=shown.code,
        param=shown.param,
        kind=shown.kind,
    )


def _invalid_object(call: Call, error: InvalidRequest) -> dict[str, object]:
    request_id = call.shown_id
    if call.dialect is Dialect.ANTHROPIC:
        return anthropic.invalid_body(error, request_id)
    return openai.invalid_body(error, request_id)
