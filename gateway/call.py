"""One HTTP call: what is known about it from its first byte to its log line.

Owns the mutable facts of a call and which dialect answers it. Sends nothing. Made by `edge.py`,
filled in by the handlers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from starlette.datastructures import Headers
from starlette.types import Scope

from schemas.ids import RequestId
from schemas.requests import Dialect, Identity

__all__ = ["CONNECTION_EXTENSION", "Call", "Connection", "call_of", "dialect_of"]

CONNECTION_EXTENSION = "millstream.connection"
"""ASGI extension of `server.py`: the `Connection` that a call came by."""

_STATE = "millstream.call"
_DIALECTS = {
    "messages": Dialect.ANTHROPIC,
    "chat": Dialect.OPENAI,
    "embeddings": Dialect.OPENAI,
    "completions": Dialect.COMPLETIONS,
    "responses": Dialect.RESPONSES,
}
"""By the first part of a path below `/v1`."""


class Connection(Protocol):
    """What ASGI does not offer of a client's connection."""

    @property
    def is_clogged(self) -> bool:
        """True while its client reads more slowly than it is written to: a write would wait."""

    def write(self, body: bytes) -> None:
        """Write more of the body that is under way, at once: only while it is not clogged."""

    def abort(self) -> None:
        """Drop it at once, unsent bytes included."""

    def when_left(self, call: Callable[[], None] | None) -> None:
        """Call back as soon as its client has gone, if that was before now at once; None: never.

        There is one such call at a time; it costs less than a task that waits for a message.
        """


@dataclass(slots=True, kw_only=True)
class Call:
    """Facts of one call, filled in as they become known."""

    request_id: RequestId
    dialect: Dialect
    method: str
    path: str
    began_s: float
    route: str = "unknown"
    """The route's pattern, for metrics: paths themselves are without number."""
    identity: Identity | None = None
    model: str | None = None
    status: int | None = None
    """None until the response has started."""
    reason: str | None = None
    """How it ended where that is not what the status says: a stop or close reason, `gone`."""
    stream: bool = False
    accept_encoding: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    first_token_s: float | None = None
    connection: Connection | None = None
    """None where the server has no such extension."""

    @classmethod
    def begin(cls, scope: Scope, request_id: RequestId, began_s: float) -> "Call":
        """Make the call of a scope and keep it there."""
        headers, path = Headers(scope=scope), scope["path"]
        call = cls(
            request_id=request_id,
            dialect=dialect_of(path, headers),
            method=scope["method"],
            path=path,
            began_s=began_s,
            accept_encoding=headers.get("accept-encoding", ""),
            connection=scope.get("extensions", {}).get(CONNECTION_EXTENSION),
        )
        scope.setdefault("state", {})[_STATE] = call
        return call


def call_of(scope: Scope) -> Call:
    """Return the call of a scope that passed the edge."""
    call = scope["state"][_STATE]
    assert isinstance(call, Call)
    return call


def dialect_of(path: str, headers: Headers) -> Dialect:
    """Return who asks: by path, elsewhere (`/v1/models`) by the `anthropic-version` header."""
    first = next((part for part in path.split("/") if part and part != "v1"), "")
    if first in _DIALECTS:
        return _DIALECTS[first]
    return Dialect.ANTHROPIC if "anthropic-version" in headers else Dialect.OPENAI
