"""OpenAI's Chat Completions API: reading a request, writing errors. Pure; bodies are decoded JSON."""

from schemas.dialects.canonical import CanonicalRequest, InvalidRequest


def parse(body: object, version: str) -> CanonicalRequest:
    """Read a body of POST /v1/chat/completions; raises InvalidRequest."""
    raise NotImplementedError


def error_body(
    status: int,
    message: str,
    request_id: str,
    *,
    code: str | None = None,
    param: str | None = None,
    details: dict[str, object] | None = None,
) -> dict[str, object]:
    """Return the error object for a status."""
    raise NotImplementedError


def invalid_body(error: InvalidRequest, request_id: str) -> dict[str, object]:
    """Return the error object of a refused request."""
    raise NotImplementedError
