"""The health port of a process: GET /health, /ready and /metrics over plain HTTP/1.1.

Owns one listening socket and nothing else; what healthy and ready mean is passed in. The gateway
answers the same paths on its own port too.
"""

import asyncio
from collections.abc import Callable

from infra.metrics import Metrics

__all__ = ["METRICS_TYPE", "HealthServer"]

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_HEAD_BYTES_MAX = 8_192
_HEAD_WITHIN_S = 5.0
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}


class HealthServer:
    """Serves one process's health on (host, port); port 0 picks a free one."""

    def __init__(
        self,
        host: str,
        port: int,
        metrics: Metrics,
        ready: Callable[[], bool],
        health: Callable[[], bool],
        measure: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the parts; `measure` sets gauges that are read off only when asked for."""
        self._host, self.port = host, port
        self._metrics, self._ready, self._health = metrics, ready, health
        self._measure = measure
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen. Raises OSError where the port is taken."""
        self._server = await asyncio.start_server(
            self._answer, self._host, self.port, limit=_HEAD_BYTES_MAX
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening; a second call has no effect."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            await server.wait_closed()

    def respond(self, method: str, path: str) -> tuple[int, str, bytes]:
        """Return status, content type and body for a request."""
        if method not in ("GET", "HEAD"):
            return 405, "text/plain", b"only GET\n"
        match path.partition("?")[0]:
            case "/health":
                return _verdict(self._health(), "healthy")
            case "/ready":
                return _verdict(self._ready(), "ready")
            case "/metrics":
                self._measure()
                return 200, METRICS_TYPE, self._metrics.expose()
        return 404, "text/plain", b"try /health, /ready or /metrics\n"

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_WITHIN_S):
                head = await reader.readuntil(b"\r\n\r\n")
                words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
                status, kind, body = (
                    self.respond(words[0], words[1])
                    if len(words) == 3
                    else (400, "text/plain", b"bad request line\n")
                )
                reason = _REASONS.get(status, "Service Unavailable")
                writer.write(
                    f"HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                    + (b"" if words[0] == "HEAD" else body)
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, OSError):
            pass  # a prober that sends no proper request or leaves gets no answer
        finally:
            writer.close()


def _verdict(good: bool, word: str) -> tuple[int, str, bytes]:
    return (
        (200, "text/plain", f"{word}\n".encode())
        if good
        else (503, "text/plain", f"not {word}\n".encode())
    )
