"""The edge around every call: ids on every response, errors in the dialect, one log line.

Owns what must hold for each response whatever the handler does: request id headers, the error
shape, what other origins may read, the canonical log line and the metrics of a call. Wraps the
whole application as middleware, and each endpoint that is called past it.
"""

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.answers import error_answer
from gateway.call import Call
from gateway.deps import Deps
from gateway.errors import ClientGone, GatewayError
from schemas.dialects.canonical import InvalidRequest
from schemas.ids import RequestId
from schemas.requests import Dialect

__all__ = ["Edge"]

_QUIET_PATHS = frozenset({"/health", "/ready", "/metrics"})
_OPENAI_VERSION = b"2020-10-01"


class Edge:
    """ASGI middleware; the outermost layer that knows a request."""

    def __init__(self, app: ASGIApp, deps: Deps) -> None:
        self._app = app
        self._deps = deps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call; whatever it raises becomes an answer or an aborted body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        deps = self._deps
        call = Call.begin(scope, RequestId(deps.entropy.uuid()), deps.clock.monotonic_s())
        answer = _Answer(call, send, self._finish_head)
        try:
            app = deps.cross_origin.preflight(call.method, call.headers) or self._app
            await app(scope, receive, answer)
        except ClientGone as error:
            call.reason = "gone"
            if call.status is None:
                call.status = 499  # nobody is left to read it; the log line tells
            deps.log.debug("client gone", why=str(error))
        except Exception as error:
            if not isinstance(error, (GatewayError, InvalidRequest)):
                deps.log.error(
                    "handler failed",
                    request_id=call.request_id,
                    shown_as=call.shown_id,
                    exc_info=error,
                )
                call.reason = "bug"
            if call.status is None:
                await error_answer(call, error)(scope, receive, answer)
            # Else the body stays unfinished: the server closes the connection without its end,
            # so no client takes it for complete.
        finally:
            self._report(call)

    def _finish_head(self, call: Call, message: Message) -> None:
        """Add to the begin of a response what stands in each of ours."""
        call.status = message["status"]
        message["headers"] = [
            *message.get("headers", ()),
            *self._headers(call),
            *self._deps.cross_origin.headers(call.headers),
        ]

    def _headers(self, call: Call) -> list[tuple[bytes, bytes]]:
        request_id = call.shown_id.encode()
        headers = [(b"request-id", request_id), (b"x-request-id", request_id)]
        if call.dialect is not Dialect.ANTHROPIC:
            headers.append((b"openai-version", _OPENAI_VERSION))
            headers.append((b"openai-processing-ms", str(self._elapsed_ms(call)).encode()))
        if call.identity is not None:
            org = call.identity.org.encode("latin-1", "replace")
            anthropic = call.dialect is Dialect.ANTHROPIC
            name = b"anthropic-organization-id" if anthropic else b"openai-organization"
            headers.append((name, org))
        if call.limit_headers is not None:
            headers.extend(call.limit_headers())
        return headers

    def _elapsed_ms(self, call: Call) -> int:
        return round((self._deps.clock.monotonic_s() - call.began_s) * 1000)

    def _report(self, call: Call) -> None:
        if call.path in _QUIET_PATHS:
            return
        elapsed_ms = self._elapsed_ms(call)
        first_s = call.first_token_s
        ttft_ms = None if first_s is None else round((first_s - call.began_s) * 1000)
        metrics = self._deps.metrics
        metrics.count("http_requests", route=call.route, status=str(call.status))
        metrics.observe("http_request_seconds", elapsed_ms / 1000, route=call.route)
        if ttft_ms is not None:
            metrics.observe(
                "time_to_first_token_seconds", ttft_ms / 1000, dialect=call.dialect.value
            )
        if call.prompt_tokens:
            metrics.count("prompt_tokens", call.prompt_tokens)
        if call.reason == "gone":
            metrics.count("clients_disconnected")
        self._deps.log.info(
            "request",
            request_id=call.request_id,
            shown_as=call.shown_id,
            method=call.method,
            path=call.path,
            org=call.identity.org if call.identity else None,
            key_id=call.identity.key_id if call.identity else None,
            model=call.model,
            dialect=call.dialect.value,
            stream=call.stream,
            status=call.status,
            input_tokens=call.prompt_tokens,
            output_tokens=call.output_tokens,
            ttft_ms=ttft_ms,
            duration_ms=elapsed_ms,
            reason=call.reason,
        )


class _Answer:
    """What a response sends through: its head is finished, and a whole one leaves in one piece."""

    __slots__ = ("_call", "_finish_head", "_head", "_send")

    def __init__(
        self, call: Call, send: Send, finish_head: Callable[[Call, Message], None]
    ) -> None:
        self._call = call
        self._send = send
        self._finish_head = finish_head
        self._head: Message | None = None
        """Held until its body comes: the two are written together."""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._finish_head(self._call, message)
            connection = self._call.connection
            names = [name for name, _ in message["headers"]]
            if message["status"] == 200 and b"content-length" in names and connection is not None:
                self._head = message
            else:
                await self._send(message)
            return
        head, self._head = self._head, None
        if head is not None:
            connection, is_whole = self._call.connection, not message.get("more_body", False)
            assert connection is not None, "there was one for its head"
            if is_whole and connection.answer(head["headers"], message.get("body", b"")):
                return
            await self._send(head)
        await self._send(message)
