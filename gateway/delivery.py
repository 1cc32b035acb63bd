"""Delivering a reply to its client: as a stream of events, or whole.

Owns the loop from accepted chunks to response bytes, keep-alives, the watch for a client that
leaves, and the cut of one that does not read. Text comes from `schemas/assembler`, acceptance from
`live_reply.py`. Each class is an ASGI response, made by `deliver` for the handlers.
"""

import asyncio
import math
from typing import Final

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.assembling import assembler_of
from gateway.call import Call
from gateway.compression import compressed
from gateway.cursor import Cursor, rest_of
from gateway.deps import Deps
from gateway.errors import ClientGone, show
from gateway.live_reply import LiveReply
from gateway.mailbox import Chunk
from schemas.assembler import Assembler, SseEvent
from schemas.fold import End

__all__ = ["StreamedReply", "WholeReply", "deliver"]

_SSE_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


_REPLAYED: Final = (b"idempotent-replayed", b"true")


def deliver(
    call: Call,
    deps: Deps,
    reply: LiveReply,
    *,
    stream: bool,
    after: Cursor | None = None,
    events_had: int = 0,
    replayed: bool = False,
    resumed: bool = False,
) -> ASGIApp:
    """Return the response that delivers a reply to one client, from its first event or `after`.

    A stream leaves out the first `events_had` of those. `replayed` is told in a header; `resumed`
    clients get what a failed reply had to say, too.
    """
    assembler = assembler_of(reply, deps.prompts, deps.locator_key)
    form = StreamedReply if stream else WholeReply
    made = form(call, deps, reply, assembler, after=after, events_had=events_had)
    made.headers = [_REPLAYED] if replayed else []
    made.tells_all = replayed or resumed
    return made


class _Delivery:
    """What both forms share: the client's watch, the writes, the end of the reply."""

    def __init__(
        self,
        call: Call,
        deps: Deps,
        reply: LiveReply,
        assembler: Assembler,
        *,
        after: Cursor | None = None,
        events_had: int = 0,
    ) -> None:
        """Take the parts; events up to and with `after` are not sent, nor the next `events_had`.

        Whole bodies know none of them.
        """
        self._call = call
        self._deps = deps
        self._reply = reply
        self._assembler = assembler
        self._after = after
        self._events_to_skip = events_had
        self.headers: list[tuple[bytes, bytes]] = []
        """Sent beside the form's own."""
        self.tells_all = False
        """True where tokens are shown even if the reply failed after them, as they once were."""
        self._last_s = 0.0
        """When the newest tokens were taken."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Deliver; what a client that leaves means for the reply is up to `orphans.py`.

        Raises: ClientGone; ReplyBroken where the reply failed before the response had started.
        """
        connection, watch = self._call.connection, None
        if connection is not None:
            connection.when_left(self._reply.interrupt)
        else:
            watch = asyncio.create_task(self._watch(receive))
        try:
            await self._deliver(send)
        finally:
            if connection is not None:
                connection.when_left(None)
            if watch is not None:
                watch.cancel()
            if self._reply.overflows:
                self._deps.metrics.count("mailbox_overflows", self._reply.overflows)
            self._call.output_tokens = self._reply.accepted_count
            await self._reply.release()

    async def _deliver(self, send: Send) -> None:
        raise NotImplementedError

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._reply.interrupt()

    async def _take(self, timeout_ms: int) -> list[Chunk]:
        """Take the next chunks. Raises ClientGone."""
        chunks = await self._reply.take(timeout_ms)
        if self._reply.interrupted:
            raise ClientGone("the client closed the connection")
        if chunks:
            self._measure(self._deps.clock.monotonic_s())
        return chunks

    def _measure(self, now_s: float) -> None:
        if self._call.first_token_s is None:
            self._call.first_token_s = now_s
        else:
            self._deps.metrics.observe(
                "inter_token_seconds", now_s - self._last_s, dialect=self._call.dialect.value
            )
        self._last_s = now_s

    async def _write(self, send: Send, body: bytes, more: bool) -> None:
        """Write, and cut a client that has read nothing for too long. Raises ClientGone."""
        message: Message = {"type": "http.response.body", "body": body, "more_body": more}
        connection = self._call.connection
        if connection is not None and not connection.is_clogged:
            if more:
                connection.write(body)
            else:
                await send(message)  # waits for nobody
            return
        try:
            async with asyncio.timeout(self._deps.slow_client_ms / 1000):
                await send(message)
        except TimeoutError as error:
            self._deps.metrics.count("clients_too_slow")
            if connection is not None:
                connection.abort()
            raise ClientGone("the client does not read") from error


class StreamedReply(_Delivery):
    """Server-sent events, one socket write per wake-up."""

    _started = False
    _opened = False
    _quiet_until_s = 0.0
    """When a client that has got nothing since needs a sign of life."""
    _broken: Exception | None = None
    """What ended a `_pour`."""

    async def _deliver(self, send: Send) -> None:
        try:
            await self._stream(send)
        except ClientGone:
            raise
        except Exception as error:
            if not self._started:
                raise
            shown = show(error)
            self._call.reason = shown.code or "bug"
            event = self._assembler.error_event(shown.status, shown.message, self._call.shown_id)
            await self._write(send, event.payload, more=True)
            raise  # the edge leaves the body unfinished

    async def _stream(self, send: Send) -> None:
        self._quiet_until_s = self._deps.clock.monotonic_s() + self._keepalive_s
        if self._call.connection is not None:
            self._reply.offer_to(self._pour)
        while True:
            chunks = await self._take(self._quiet_ms())
            if self._broken is not None:
                raise self._broken
            # Nothing of what was written lives on in this frame while it waits.
            if await self._show(send, chunks):
                return

    def _pour(self) -> bool:
        """Write the events of chunks that wait, without this response's task; False where it has to
        do it: at the reply's begin and end, and for clients that read slowly."""
        connection = self._call.connection
        if not self._started or connection is None or connection.is_clogged:
            return False
        try:
            chunks = self._reply.take_waiting()
            payload = self._assemble(chunks, None)
        except Exception as error:  # it is the task's to end the response
            self._broken = error
            return False
        now_s = self._deps.clock.monotonic_s()
        self._measure(now_s)
        if payload:
            connection.write(payload)
            self._quiet_until_s = now_s + self._keepalive_s
        return True

    @property
    def _keepalive_s(self) -> float:
        return self._deps.keepalive_ms / 1000

    def _quiet_ms(self) -> int:
        """Return how long nothing has to be written, though nothing comes.

        Rounded up: a wait of less than half a millisecond must not become a busy loop.
        """
        wait_s = max(0.0, self._quiet_until_s - self._deps.clock.monotonic_s())
        return math.ceil(wait_s * 1000)

    async def _show(self, send: Send, chunks: list[Chunk]) -> bool:
        """Write what there is to write now; return whether the reply has ended."""
        clock, end = self._deps.clock, self._reply.end
        payload = self._assemble(chunks, end)
        if not payload and clock.monotonic_s() >= self._quiet_until_s:
            payload = self._assembler.keepalive()
        done = end is not None and end.terminal is not None
        if payload or done:
            await self._start(send)
            await self._write(send, payload, more=not done)
            self._quiet_until_s = clock.monotonic_s() + self._keepalive_s
        if end is None:
            return False
        if end.terminal is None:
            raise self._reply.broken()
        self._call.reason = end.terminal.stops[0].reason.value
        return True

    def _assemble(self, chunks: list[Chunk], end: End | None) -> bytes:
        """Return the events of these chunks and of the end, joined.

        Before the response has started, chunks that came with a failure are dropped: a real status
        says more than a stream that fails at once. Those who resume get them: they may be behind.
        """
        terminal = end.terminal if end is not None else None
        failed_at_once = not self._started and end is not None and terminal is None
        if failed_at_once and not (self.tells_all and chunks):
            return b""
        parts: list[bytes] = []
        if not self._opened:
            parts.extend(rest_of(self._open(chunks, terminal is not None), self._after))
        for chunk in chunks:
            events = self._assembler.feed(chunk.choice, chunk.token_ids, chunk.logprobs)
            parts.extend(rest_of(events, self._after))
        if terminal is not None:
            parts.extend(rest_of(self._assembler.finish(terminal.stops), self._after))
        skipped = min(self._events_to_skip, len(parts))
        self._events_to_skip -= skipped
        return b"".join(parts[skipped:])

    def _open(self, chunks: list[Chunk], ended: bool) -> tuple[SseEvent, ...]:
        """Return the events before the first token once that is there, as it tells what of the
        prompt was cached; or once the reply ended without any."""
        first = next((chunk for chunk in chunks if chunk.token_ids), None)
        if first is None and not ended:
            return ()
        self._opened = True
        return self._assembler.opening(first.cached_tokens if first is not None else None)

    async def _start(self, send: Send) -> None:
        if not self._started:
            self._started = True
            headers = [*_SSE_HEADERS, *self.headers]
            await send({"type": "http.response.start", "status": 200, "headers": headers})


class WholeReply(_Delivery):
    """One JSON body, sent once the reply has ended."""

    async def _deliver(self, send: Send) -> None:
        await self._reply.take_end(self._note_first)
        end = self._reply.end
        if end is None:
            raise ClientGone("the client closed the connection")
        if end.terminal is None:
            raise self._reply.broken()
        whole = msgspec.json.encode(self._assembler.whole(end.terminal, end.cached_tokens))
        self._call.reason = end.terminal.stops[0].reason.value
        body, encoding = await compressed(whole, self._call.accept_encoding)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *encoding,
            *self.headers,
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._write(send, body, more=False)

    def _note_first(self) -> None:
        self._call.first_token_s = self._deps.clock.monotonic_s()
