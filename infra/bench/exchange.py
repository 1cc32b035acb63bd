"""One HTTP/1.1 exchange at a time on a raw connection, counted cheaply.

Owns the little of HTTP that a load client needs: status, length or chunks, the end of the body;
and when which `data:` events came. Reads no JSON. Called by `load.py`.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import cast

__all__ = ["Connection", "Exchange"]

_TEXT = b'"content":"'
_COMMENT = b"\n: "
"""How a comment begins, behind its chunk's head: it ends no event."""
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_CARRY_BYTES = 16


class Exchange:
    """What came back for one request, and when: in seconds of `perf_counter`, since uvloop's own
    clock counts milliseconds."""

    __slots__ = ("arrivals", "due_s", "ended_s", "failure", "first_s", "sent_s", "size", "status")

    def __init__(self, due_s: float) -> None:
        self.due_s = due_s
        """When it should have been sent; latency counts from here."""
        self.sent_s = 0.0
        self.first_s: float | None = None
        """First text, or first byte of a body that is no stream."""
        self.ended_s: float | None = None
        self.status = 0
        self.size = 0
        self.arrivals: list[tuple[float, int]] = []
        """(when, how many events) for each read that ended some, or brought a comment."""
        self.failure: str | None = None


class Connection(asyncio.Protocol):
    """A keep-alive connection; `ask` sends a request, `on_end` hears of its end."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._on_end: Callable[[Exchange], None] = lambda exchange: None
        self._head: bytes | None = b""
        self._head_rest = b""
        self._left: int | None = None
        self._is_stream = False
        self._carry = b""

    @property
    def is_open(self) -> bool:
        """Tell whether another request can be sent."""
        return self.transport is not None and not self.transport.is_closing()

    def ask(self, request: bytes, exchange: Exchange, on_end: Callable[[Exchange], None]) -> None:
        """Send a whole request."""
        assert self._exchange is None, "one exchange at a time"
        assert self.transport is not None, "connected"
        self._reset()
        self._exchange, self._on_end = exchange, on_end
        exchange.sent_s = perf_counter()
        self.transport.write(request)

    def close(self) -> None:
        """Drop the connection, also in the middle of a body."""
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the exchange in progress."""
        self._end(f"connection lost: {exc}" if exc else "connection closed")

    def data_received(self, data: bytes) -> None:
        """Take bytes of a response."""
        exchange = self._exchange
        if exchange is None:
            return
        now_s = perf_counter()
        if self._head is not None:
            self._head += data
            if not self._read_head(exchange):
                return
            data = self._head_rest
        exchange.size += len(data)
        if self._is_stream:
            self._read_events(exchange, data, now_s)
        elif exchange.first_s is None and data:
            exchange.first_s = now_s
        if self._left is not None:
            self._left -= len(data)
            if self._left <= 0:
                self._end(None)
        elif (self._carry + data).endswith(_LAST_CHUNK):
            self._end(None)
        self._carry = (self._carry + data)[-_CARRY_BYTES:]

    def _reset(self) -> None:
        self._head, self._head_rest, self._left = b"", b"", None
        self._is_stream, self._carry = False, b""

    def _read_head(self, exchange: Exchange) -> bool:
        assert self._head is not None
        head, blank, rest = self._head.partition(b"\r\n\r\n")
        if not blank:
            return False
        self._head, self._head_rest = None, rest
        exchange.status = int(head[9:12])
        lower = head.lower()
        self._is_stream = b"text/event-stream" in lower
        if b"transfer-encoding: chunked" not in lower:
            _, _, length = lower.partition(b"content-length:")
            self._left = int(length.split(b"\r\n", 1)[0])
        else:
            self._carry = b"\r\n"  # an empty body's last chunk follows the head's line break
        return True

    def _read_events(self, exchange: Exchange, data: bytes, now_s: float) -> None:
        # A line break at the end of one read and another at the start of the next end an event.
        events = data.count(b"\n\n") + (self._carry[-1:] == b"\n" and data[:1] == b"\n")
        if events or _COMMENT in data:
            exchange.arrivals.append((now_s, events))
        if exchange.first_s is None:
            seen = self._carry + data
            place = seen.find(_TEXT)
            while place >= 0:
                if seen[place + len(_TEXT) : place + len(_TEXT) + 1] not in (b'"', b""):
                    exchange.first_s = now_s
                    return
                place = seen.find(_TEXT, place + 1)

    def _end(self, failure: str | None) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        exchange.ended_s = perf_counter()
        if exchange.first_s is None and exchange.arrivals:
            exchange.first_s = exchange.arrivals[0][0]  # a body in another form
        exchange.failure = failure
        if failure is None and exchange.status != 200:
            exchange.failure = f"status {exchange.status}"
        self._on_end(exchange)
