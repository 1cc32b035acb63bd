"""A response of many lines, read from the log while they are sent: of any length in little memory.

Owns the order of head, chunks and end, and the cut of a client that does not read. What is read is
the handlers'.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, aclosing

from starlette.types import Message, Receive, Scope, Send

from gateway.call import Call
from gateway.deps import Deps
from gateway.errors import ClientGone, GatewayError, LogAway
from infra.errors import LogUnavailable, OffsetUnreadable

__all__ = ["LineStream"]


class LineStream:
    """An ASGI response; an error before the first chunk gets a status of its own."""

    def __init__(
        self,
        call: Call,
        deps: Deps,
        chunks: AsyncGenerator[bytes, None],
        *,
        media_type: str,
        place: AbstractContextManager[None],
        gone: GatewayError,
    ) -> None:
        """Take what is sent; `place` is held meanwhile, `gone` raised where it is not kept."""
        self._call = call
        self._deps = deps
        self._chunks = chunks
        self._media_type = media_type
        self._place = place
        self._gone = gone
        self._left = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all chunks. Raises what reading raised: after the head the body stays unfinished."""
        connection = self._call.connection
        if connection is not None:
            connection.when_left(self._note_left)
        try:
            with self._place:
                async with aclosing(self._chunks) as chunks:
                    await self._send(chunks, send)
        except OffsetUnreadable as error:
            raise self._gone from error
        except LogUnavailable as error:
            raise LogAway("Service unavailable: the log cannot be read now") from error
        finally:
            if connection is not None:
                connection.when_left(None)

    async def _send(self, chunks: AsyncGenerator[bytes, None], send: Send) -> None:
        chunk = await anext(chunks, None)
        headers = [(b"content-type", self._media_type.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while chunk is not None:
            if chunk:
                await self._write(send, chunk, more=True)
            chunk = await anext(chunks, None)
        await self._write(send, b"", more=False)

    async def _write(self, send: Send, body: bytes, *, more: bool) -> None:
        """Write, and cut a client that has read nothing for too long. Raises ClientGone."""
        message: Message = {"type": "http.response.body", "body": body, "more_body": more}
        try:
            async with asyncio.timeout(self._deps.slow_client_ms / 1000):
                await send(message)
        except TimeoutError as error:
            self._deps.metrics.count("clients_too_slow")
            if self._call.connection is not None:
                self._call.connection.abort()
            raise ClientGone("the client does not read") from error
        if self._left:
            raise ClientGone("the client closed the connection")

    def _note_left(self) -> None:
        self._left = True
