"""One HTTP call: what is known about it from its first byte to its log line.

Owns the mutable facts of a call and which dialect answers it. Sends nothing. Made by `edge.py`,
filled in by the handlers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field
from starlette.types import Scope

from schemas.ids import RequestId, show_request_id
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

    @property
    def has_body(self) -> bool:
        """True once the whole body of a call lies in memory: reading it waits for nobody."""

    def answer(self, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        """Answer 200 with a whole body of the length that the headers tell, at once.

        False where it has to be sent message by message; nothing was written then.
        """

    def write(self, body: bytes) -> None:
        """Write more of the body that is under way, at once: only while it is not clogged."""

    def abort(self) -> None:
        """Drop it at once, unsent bytes included."""

    def when_left(self, call: Callable[[], None] | None) -> None:
        """Call back as soon as its client has gone, if that was before now at once; None: never.

        There is one such call at a time; it costs less than a task that waits for a message.
        """


class Call(Struct, kw_only=True):
    """Facts of one call, filled in as they become known."""

    request_id: RequestId
    shown_id: str
    """The same id as clients see it: `req_...`."""
    dialect: Dialect
    method: str
    path: str
    began_s: float
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of the request, by lower-case name; of one that comes twice the first."""
    route: str = "unknown"
    """The route's pattern, for metrics: paths themselves are without number."""
    identity: Identity | None = None
    model: str | None = None
    status: int | None = None
    """None until the response has started."""
    reason: str | None = None
    """How it ended where that is not what the status says: a stop or close reason, `gone`."""
    stream: bool = False
    prompt_tokens: int = 0
    output_tokens: int = 0
    first_token_s: float | None = None
    connection: Connection | None = None
    """None where the server has no such extension."""
    limit_headers: Callable[[], Sequence[tuple[bytes, bytes]]] | None = None
    """Tells what is left of the org's limits; None where it has none or they do not apply."""

    @property
    def accept_encoding(self) -> str:
        """How the client takes a body compressed, empty where it does not say."""
        return self.headers.get("accept-encoding", "")

    def keep_headers(self, *names: str) -> None:
        """Let go of all other headers: a stream may last for long."""
        self.headers = {name: self.headers[name] for name in names if name in self.headers}

    @classmethod
    def begin(cls, scope: Scope, request_id: RequestId, began_s: float) -> "Call":
        """Make the call of a scope and keep it there."""
        headers, path = dict[str, str](), scope["path"]
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
        extensions = scope.get("extensions") or {}
        call = cls(
            request_id=request_id,
            shown_id=show_request_id(request_id),
            dialect=dialect_of(path, headers),
            method=scope["method"],
            path=path,
            headers=headers,
            began_s=began_s,
            connection=extensions.get(CONNECTION_EXTENSION),
        )
        scope.setdefault("state", {})[_STATE] = call
        return call


def call_of(scope: Scope) -> Call:
    """Return the call of a scope that passed the edge."""
    call = scope["state"][_STATE]
    assert isinstance(call, Call)
    return call


def dialect_of(path: str, headers: Mapping[str, str]) -> Dialect:
    """Return who asks: by path, elsewhere (`/v1/models`) by the `anthropic-version` header."""
    first = next((part for part in path.split("/") if part and part != "v1"), "")
    if first in _DIALECTS:
        return _DIALECTS[first]
    return Dialect.ANTHROPIC if "anthropic-version" in headers else Dialect.OPENAI
