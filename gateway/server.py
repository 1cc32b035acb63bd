"""The HTTP server: uvicorn on given sockets, with the few things that ASGI does not offer.

Owns sockets, the abort of a connection that does not drain, and the order of a graceful stop.
Knows no path and no dialect. Made by the composition root and by tests.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Generator, Sequence
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.call import CONNECTION_EXTENSION
from gateway.joined_writes import JoinedWrites
from schemas import limits

__all__ = ["HttpServer", "listen"]

_BACKLOG = 2_048
_IDLE_S = 75
"""Above the usual 60 s after which clients and balancers drop idle connections themselves."""
_STOP_S = 5
_LOOK_EVERY_S = 0.02
_SETTLE_S = 0.1
"""What was asked or accepted at the last moment is being answered by then."""


class _Config(uvicorn.Config):
    """What all connections of one server know."""

    leaving = False
    """Whether each connection ends with the answer that it waits for or asks for next."""


class _Protocol(HttpToolsProtocol):
    """Adds what the parser and ASGI leave open: bounds on a request's head, a farewell, and what
    `gateway.call.Connection` tells of. Its abort does not wait until a client has read all.
    """

    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _in_head = True
    _answering: RequestResponseCycle | None = None
    """The request that is answered now; `cycle` is the newest, which may have been sent ahead."""
    _begun = False
    """Whether the first bytes of a head have come."""
    _is_lost = False
    _on_left: Callable[[], None] | None = None
    _ended_one = False
    """Whether the bytes at hand held a request's end."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn
        super().connection_made(JoinedWrites(transport, self.loop))
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        self._ended_one = False
        super().data_received(data)
        if self._in_head and not self._ended_one:  # else most of it was a body
            self._head_bytes += len(data)
            if self._head_bytes > limits.HTTP_HEAD_BYTES_MAX and not self.transport.is_closing():
                self._refuse_head()
        if self._in_head and self._begun:
            self._wait_for_head()  # most heads come whole and need no timer

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION_EXTENSION: self}  # type: ignore[dict-item] # ours
        self._stop_waiting()
        self._in_head, self._begun, self._head_bytes = True, True, 0

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._in_head = self._begun = False
        super().on_headers_complete()
        if getattr(self.config, "leaving", False):
            self.leave()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head, self._head_bytes, self._ended_one = True, 0, True

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)
        self._is_lost = True
        # Both know this connection: in a circle they would wait for the garbage's collection.
        self.cycle = self.scope = None  # type: ignore[assignment] # as before the first request
        self._answering = None
        if self._on_left is not None:
            self._on_left()

    @property
    def is_clogged(self) -> bool:
        return bool(self.flow.write_paused)

    @property
    def has_body(self) -> bool:
        return self.cycle is not None and not self.cycle.more_body

    def answer(self, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        cycle = self._answering
        if cycle is None or cycle.disconnected or cycle.response_started or self.flow.write_paused:
            return False
        if cycle.scope["method"] == "HEAD" or not cycle.keep_alive:
            return False
        lines = [b"%b: %b\r\n" % pair for pair in (*cycle.default_headers, *headers)]
        head = b"".join([b"HTTP/1.1 200 OK\r\n", *lines, b"\r\n"])
        assert head.count(b"\n") == head.count(b"\r") == len(lines) + 2, "a header is one line"
        cycle.response_started = cycle.response_complete = True
        assert isinstance(self.transport, JoinedWrites), "made by connection_made"
        self.transport.write_now(head + body)
        cycle.message_event.set()
        cycle.on_response()
        return True

    def write(self, body: bytes) -> None:
        answering = self._answering
        if self._is_lost or answering is None:
            return
        assert answering.response_started, "a body is under way"
        assert body, "an empty chunk would end it"
        assert isinstance(self.transport, JoinedWrites), "made by connection_made"
        framed = b"%x\r\n%b\r\n" % (len(body), body) if answering.chunked_encoding else body
        self.transport.write_now(framed)

    def abort(self) -> None:
        self.transport.abort()

    def when_left(self, call: Callable[[], None] | None) -> None:
        self._on_left = call
        if call is not None and self._is_lost:
            call()

    def leave(self) -> None:
        """Say `connection: close` in the answer under way, if its head is still to come."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def part(self) -> None:
        """Close where nothing is asked, else after the answer under way."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        elif not self._begun:
            self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        if cycle.scope["http_version"] == "1.0":
            app = _until_close(app, cycle)
        super()._start_asgi_task(cycle, app)

    def _refuse_head(self) -> None:
        text = b"Request header fields too large.\n"
        self.transport.write(
            b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
            b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(text), text)
        )
        self.transport.close()

    def _wait_for_head(self) -> None:
        """Let a head be whole within the bound, however slowly it drips."""
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(limits.HTTP_HEAD_READ_MS / 1000, self.abort)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _until_close(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """Answer a client of HTTP/1.0, which knows no chunks (RFC 9112, section 6.1).

    A body of unknown length ends with its connection; such a client's is never kept.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        is_open_ended = False

        async def send_bare(message: Message) -> None:
            nonlocal is_open_ended
            if message["type"] == "http.response.start":
                names = [name.lower() for name, _ in message.get("headers", ())]
                is_open_ended = b"content-length" not in names
                if is_open_ended:
                    cycle.chunked_encoding = False
            elif is_open_ended:  # each piece is all that is expected
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_bare)

    return answer


class _Server(uvicorn.Server):
    """Leaves signals to the composition root, which drains first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class HttpServer:
    """Serves one application on listening sockets until stopped."""

    def __init__(self, app: ASGIApp, sockets: list[socket.socket]) -> None:
        self._config = _Config(
            app,
            http=_Protocol,
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,  # the edge writes one line per request
            log_config=None,  # the process's logging is configured already
            server_header=False,
            proxy_headers=False,  # nobody in front is trusted; the peer's address is not used
            backlog=_BACKLOG,
            timeout_keep_alive=_IDLE_S,
            timeout_graceful_shutdown=limits.GATEWAY_DRAIN_MS // 1000 + _STOP_S,
        )
        self._server = _Server(self._config)
        self._sockets = sockets
        self._task: asyncio.Task[None] | None = None
        # A body that is left unfinished on purpose is no error; its own log line tells why.
        logging.getLogger("uvicorn.error").addFilter(_not_unfinished)

    async def start(self) -> None:
        """Listen; returns once connections are answered. Raises RuntimeError where it cannot."""
        self._task = asyncio.create_task(self._server.serve(self._sockets))
        while not self._server.started:
            if self._task.done():
                await self._task
                raise RuntimeError("the HTTP server did not start")
            await asyncio.sleep(0.005)

    async def accept(self, listener: socket.socket) -> None:
        """Listen on one more socket. Raises OSError where that is not possible."""
        self._server.servers.append(
            await asyncio.get_running_loop().create_server(
                self._make_protocol, sock=listener, backlog=_BACKLOG
            )
        )

    async def leave(self, linger_s: float) -> None:
        """Accept no more connections; go on answering on those there are, each once more.

        Returns soon after none is left, and after `linger_s` at the latest: a client that sent its
        request just now gets an answer, and the next one goes to another process. A stream's head
        has told its client that the connection is kept; where nothing is asked it is closed then.
        """
        self._config.leaving = True
        for listener in self._server.servers:
            listener.close()
        for connection in self._connections():
            connection.leave()
        until_s = asyncio.get_running_loop().time() + linger_s
        # The server tells nobody of a connection's end.
        while self._connections() and asyncio.get_running_loop().time() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_EVERY_S)
        for connection in self._connections():
            connection.part()
        await asyncio.sleep(_SETTLE_S)

    async def stop(self) -> None:
        """Accept no more; wait, bounded, until every running response has ended."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task

    def _connections(self) -> list[_Protocol]:
        connections = list(self._server.server_state.connections)
        assert all(isinstance(connection, _Protocol) for connection in connections), "our own"
        return cast("list[_Protocol]", connections)

    def _make_protocol(self) -> _Protocol:
        return _Protocol(
            config=self._config,
            server_state=self._server.server_state,
            app_state=self._server.lifespan.state,
        )


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 picks a free one. Raises OSError where it is taken."""
    return socket.create_server((host, port), backlog=_BACKLOG)


def _not_unfinished(record: logging.LogRecord) -> bool:
    return "returned without completing response" not in record.getMessage()
