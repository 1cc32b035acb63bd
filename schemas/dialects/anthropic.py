"""Anthropic's Messages API: reading a request, writing errors. Pure; bodies are decoded JSON."""

from schemas.dialects.canonical import CanonicalRequest, InvalidRequest

VERSIONS = ("2023-06-01", "2026-10-21")


def check_version(header: str | None) -> str:
    """Return the `anthropic-version` asked for; raises InvalidRequest where it is missing or unknown."""
    raise NotImplementedError


def parse(body: object, version: str) -> CanonicalRequest:
    """Read a body of POST /v1/messages; raises InvalidRequest."""
    raise NotImplementedError


def parse_count(body: object, version: str) -> CanonicalRequest:
    """Read a body of POST /v1/messages/count_tokens (max_tokens is absent); raises InvalidRequest."""
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
