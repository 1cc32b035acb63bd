"""Requests from web pages of other origins: who may ask, and what their scripts may read.

Owns the origins and the headers of CORS. Keys travel in headers that a script sets itself, never in
cookies, so credentials are not allowed and no origin can ride on a user's login. Called by
`edge.py`; pure.

Source: https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from starlette.responses import Response

from gateway.limit_headers import LIMIT_HEADERS

__all__ = ["CrossOrigin"]

_METHODS = "DELETE, GET, HEAD, POST"
_READABLE = ", ".join(
    (
        "request-id, x-request-id, retry-after, x-should-retry, idempotent-replayed",
        "anthropic-organization-id, openai-organization, openai-processing-ms, openai-version",
        *LIMIT_HEADERS,
    )
).encode()
_KNOWN_HEADERS = (
    "accept, authorization, content-type, x-api-key, anthropic-version, anthropic-beta,"
    " idempotency-key, last-event-id, millstream-resumable"
)
"""What a page may send where its browser does not say what it will."""
_CACHED_S = 600
_REQUESTED_CHARS_MAX = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossOrigin:
    """Which origins may call this gateway from their pages; none unless configured."""

    origins: frozenset[str] = frozenset()
    """Such as `https://app.example`; `*` = every one."""

    @classmethod
    def of(cls, setting: str) -> Self:
        """Return what a comma-separated setting allows."""
        return cls(origins=frozenset(filter(None, map(str.strip, setting.split(",")))))

    def headers(self, asked: Mapping[str, str]) -> Iterable[tuple[bytes, bytes]]:
        """Return the headers that let the asking page read an answer."""
        if not self.origins:
            return ()
        allowed = self._allowed(asked.get("origin"))
        if allowed is None:
            return ((b"vary", b"origin"),)
        return (
            (b"access-control-allow-origin", allowed.encode("latin-1")),
            (b"access-control-expose-headers", _READABLE),
            (b"vary", b"origin"),
        )

    def preflight(self, method: str, asked: Mapping[str, str]) -> Response | None:
        """Return the answer to a browser that asks beforehand, None where this is not that."""
        if method != "OPTIONS" or "access-control-request-method" not in asked:
            return None
        if self._allowed(asked.get("origin")) is None:
            return None
        wanted = asked.get("access-control-request-headers", "")[:_REQUESTED_CHARS_MAX]
        return Response(
            status_code=204,
            headers={
                "access-control-allow-methods": _METHODS,
                "access-control-allow-headers": wanted or _KNOWN_HEADERS,
                "access-control-max-age": str(_CACHED_S),
            },
        )

    def _allowed(self, origin: str | None) -> str | None:
        if origin is None:
            return None
        if "*" in self.origins:
            return "*"
        return origin if origin in self.origins else None
