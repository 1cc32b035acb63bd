"""Answers as JSON: errors in the dialect of the call, and plain values.

Owns the shape of what is sent whole. Streams stand in `streaming.py`, statuses in `errors.py`.
"""

import msgspec
from starlette.responses import Response

from gateway.call import Call
from gateway.errors import BodyTooLarge, BodyTooSlow, MethodNotAllowed, show
from schemas.dialects import anthropic, openai
from schemas.dialects.canonical import InvalidRequest
from schemas.ids import RequestId, show_request_id
from schemas.requests import Dialect

__all__ = ["error_answer", "error_value", "json_answer"]


def json_answer(
    value: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Return a JSON response."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def error_answer(call: Call, error: Exception) -> Response:
    """Return the response for an error that came before the response had started."""
    call.reason = call.reason or type(error).__name__
    status, value = error_value(error, call.dialect, call.request_id)
    if isinstance(error, InvalidRequest):
        return json_answer(value, status)
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
    return json_answer(value, status, headers)


def error_value(
    error: Exception, dialect: Dialect, request_id: RequestId
) -> tuple[int, dict[str, object]]:
    """Return the status of an error and the dialect's error object."""
    shown_id = show_request_id(request_id)
    anthropics = dialect is Dialect.ANTHROPIC
    if isinstance(error, InvalidRequest):
        invalid_body = anthropic.invalid_body if anthropics else openai.invalid_body
        return error.status, invalid_body(error, shown_id)
    shown = show(error)
    if anthropics:
        code = shown.details_code
        return shown.status, anthropic.error_body(shown.status, shown.message, shown_id, code=code)
    return shown.status, openai.error_body(
        shown.status,
        shown.message,
        shown_id,
        code=shown.code,
        param=shown.param,
        kind=shown.kind,
    )
