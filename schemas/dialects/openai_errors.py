"""Errors as OpenAI's endpoints word them: one shape for all of them."""

from collections.abc import Collection, Mapping
from typing import Final

from schemas.dialects.canonical import InvalidRequest

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


def error_body(
    status: int,
    message: str,
    request_id: str,
    *,
    code: str | None = None,
    param: str | None = None,
    kind: str | None = None,
) -> dict[str, object]:
    """Return the error object for a status; the request id stands in `x-request-id` only.

    `kind` is its type where that is not the status's own.
    """
    fallback = ("invalid_request_error", None) if status < 500 else ("server_error", None)
    status_kind, default_code = _ERROR_TYPES.get(status, fallback)
    return {
        "error": {
            "message": message,
            "type": kind or status_kind,
            "param": param,
            "code": code or default_code,
        }
    }


def invalid_body(error: InvalidRequest, request_id: str) -> dict[str, object]:
    """Return the error object of a refused request."""
    return error_body(
        error.status, error.message, request_id, code=error.code, param=error.path or None
    )


def unrecognized(path: str, name: str) -> InvalidRequest:
    """Return the refusal of a member that the API does not know."""
    return InvalidRequest(
        path,
        "unrecognized",
        message=f"Unrecognized request argument supplied: {name}",
        code="unknown_parameter",
    )


def refuse_unknown(members: Mapping[str, object], known: Collection[str], path: str = "") -> None:
    """Raise for the first member that the API does not know."""
    for key in members:
        if key not in known:
            whole = f"{path}.{key}" if path else key
            raise unrecognized(whole, whole)
