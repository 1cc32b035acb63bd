"""The HTTP application as data: routes, one middleware, what 404 and 405 mean.

Owns which path means which handler, and that POSTs which read a body go to theirs without passing
the layers and the list of routes that all other calls pass. Made by the composition root and by
tests from `Deps`.
"""

from collections.abc import Awaitable, Callable, Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import generation, information, resumption
from gateway.batches import file_calls, message_batches, openai_batches
from gateway.call import Call, call_of
from gateway.deps import Deps
from gateway.edge import Edge
from gateway.errors import MethodNotAllowed, PathUnknown

__all__ = ["build_app", "routes_of"]

Handler = Callable[[Request, Deps], Awaitable[ASGIApp]]
Reader = Callable[[Call, Receive, Deps], Awaitable[ASGIApp]]
"""A handler of a POST: it reads the body."""

_PREFIXES = ("/v1", "/v1/v1")
"""Both: clients whose base URL holds `/v1` already ask for `/v1/v1/messages`."""

_GENERATING: tuple[tuple[str, Reader], ...] = (
    ("/messages", generation.messages),
    ("/chat/completions", generation.chat_completions),
    ("/completions", generation.completed_text),
    ("/responses", generation.responded),
)
_READING: tuple[tuple[str, Reader], ...] = (
    ("/messages/count_tokens", generation.count_tokens),
    *_GENERATING,
    ("/embeddings", generation.embeddings),
    ("/messages/batches", message_batches.create),
    ("/files", file_calls.create),
    ("/batches", openai_batches.create),
)
_API: tuple[tuple[str, str, Handler], ...] = (
    # Before the replies' routes: `batches` is no reply's id.
    ("GET", "/messages/batches", message_batches.listed),
    ("GET", "/messages/batches/{batch_id}", message_batches.retrieve),
    ("DELETE", "/messages/batches/{batch_id}", message_batches.delete),
    ("GET", "/messages/batches/{batch_id}/results", message_batches.results),
    ("POST", "/messages/batches/{batch_id}/cancel", message_batches.cancel),
    *(("GET", f"{path}/{{reply_id}}", resumption.retrieve) for path, _ in _GENERATING),
    *(("POST", f"{path}/{{reply_id}}/cancel", resumption.cancel) for path, _ in _GENERATING),
    ("GET", "/files", file_calls.listed),
    ("GET", "/files/{file_id}", file_calls.retrieve),
    ("DELETE", "/files/{file_id}", file_calls.delete),
    ("GET", "/files/{file_id}/content", file_calls.content),
    ("GET", "/batches", openai_batches.listed),
    ("GET", "/batches/{batch_id}", openai_batches.retrieve),
    ("POST", "/batches/{batch_id}/cancel", openai_batches.cancel),
    ("GET", "/models", information.list_models),
    ("GET", "/models/{model_id:path}", information.retrieve_model),
    ("GET", "/openapi.json", information.openapi),
)
_OWN: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/", information.root),
    ("GET", "/health", information.health),
    ("GET", "/ready", information.ready),
    ("GET", "/metrics", information.metrics),
    ("GET", "/admin/v1/usage-totals", information.usage_totals),
)


def build_app(deps: Deps) -> ASGIApp:
    """Return the application over these dependencies."""
    app = Starlette(
        routes=routes_of(deps),
        middleware=[Middleware(Edge, deps=deps)],
        exception_handlers={HTTPException: _refuse},
    )
    app.router.redirect_slashes = False  # a path is known or it is not; POSTs are not sent twice
    posts = {
        path: Edge(_ReadingEndpoint(path, reader, deps), deps)
        for path, reader in _reading().items()
    }

    def route(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        straight = posts.get(scope["path"]) if scope.get("method") == "POST" else None
        return (straight or app)(scope, receive, send)

    return route


def routes_of(deps: Deps | None = None) -> list[Route]:
    """Return all routes; without dependencies they can be looked at, not called."""
    table = [
        *_OWN,
        *(
            (method, prefix + path, handler)
            for prefix in _PREFIXES
            for method, path, handler in _API
        ),
    ]
    return [
        *(
            Route(path, _ReadingEndpoint(path, reader, deps), methods=["POST"])
            for path, reader in _reading().items()
        ),
        *(
            Route(path, _Endpoint(path, handler, deps), methods=[method])
            for method, path, handler in table
        ),
    ]


def _reading() -> Mapping[str, Reader]:
    """Return the handlers that read a body, by path."""
    return {prefix + path: reader for prefix in _PREFIXES for path, reader in _READING}


class _Endpoint:
    """A handler as an ASGI application; errors pass through to the edge."""

    def __init__(self, route: str, handler: Handler, deps: Deps | None) -> None:
        self._route = route
        self._handler = handler
        self._deps = deps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._deps is not None, "routes without dependencies serve nobody"
        call_of(scope).route = self._route
        response = await self._handler(Request(scope, receive, send), self._deps)
        await response(scope, receive, send)


class _ReadingEndpoint:
    """A handler that reads a body as an ASGI application; errors pass through to the edge."""

    def __init__(self, route: str, handler: Reader, deps: Deps | None) -> None:
        self._route = route
        self._handler = handler
        self._deps = deps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._deps is not None, "routes without dependencies serve nobody"
        call = call_of(scope)
        call.route = self._route
        response = await self._handler(call, receive, self._deps)
        await response(scope, receive, send)


async def _refuse(request: Request, error: Exception) -> Response:
    """Turn the router's own errors into ours; the edge answers them."""
    assert isinstance(error, HTTPException)
    path, method = request.url.path, request.method
    if error.status_code == 405:
        allow = ", ".join(sorted(_methods(request)))
        raise MethodNotAllowed(f"{method} is not allowed on {path}; use {allow}", allow)
    raise PathUnknown(f"no such path: {method} {path}")


def _methods(request: Request) -> set[str]:
    """Return what a path may be asked with, by whichever of its routes."""
    found = set[str]()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return found
