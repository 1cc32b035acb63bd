"""Closing replies from outside: append `Closed` until the log shows an end.

Owns the retries of this gateway's own closes, each within a bound, and their batching: thousands of
clients may leave at once. Which reason applies is decided by `live_reply.py`; whether the close
counted is decided by the log. Called by live replies, submission (sends of unknown outcome) and the
drain.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from msgspec import Struct

from gateway.reader import Followed
from infra.errors import LogError, SendRefused
from infra.ports import Appended, Clock, LogWriter
from schemas import limits
from schemas.codec import encode
from schemas.replies import BOUNDARY_HEADER, Closed, CloseReason, Entry, ReplyRecord
from schemas.topics import REPLIES

__all__ = ["Closer", "Follower"]


class Follower(Protocol):
    """Who follows the replies that are closed: one tail, or all of a gateway's."""

    def forget(self, request_id: str) -> None:
        """Follow a reply no longer; unknown ids are ignored."""


class _Close(Struct, frozen=True, kw_only=True):
    """One reply's close, until its end is read back."""

    followed: Followed
    reason: CloseReason
    message: str | None
    until_s: float
    """When to stop trying."""


class Closer:
    """Appends closes in the background, so that a client that left is not waited for."""

    def __init__(self, *, writer: LogWriter, clock: Clock, reader: Follower, by: str) -> None:
        """Take the parts; `reader` forgets a reply once its close is through."""
        self._writer = writer
        self._clock = clock
        self._reader = reader
        self._by = by
        self._open: dict[str, _Close] = {}
        """By request id, in order of their deadlines: all have the same time."""
        self._waiting: list[_Close] = []
        self._sender: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._retries: set[asyncio.TimerHandle] = set()
        self._emptied = asyncio.Event()

    @property
    def pending(self) -> int:
        """How many closes have not been read back yet."""
        return len(self._open)

    def close(self, followed: Followed, reason: CloseReason, message: str | None = None) -> None:
        """Ask for the end of a reply; only the first call for it has an effect."""
        if followed.closing is not None or followed.fold.end is not None:
            return
        followed.closing = reason
        close = _Close(
            followed=followed,
            reason=reason,
            message=message,
            until_s=self._clock.monotonic_s() + limits.CLOSE_RETRY_MS / 1000,
        )
        self._open[followed.request.request_id] = close
        followed.on_closed = partial(self._end, close)
        if self._alarm is None:
            self._set_alarm(limits.CLOSE_RETRY_MS / 1000)
        self._put([close])

    async def stop(self, timeout_s: float) -> None:
        """Give pending closes up to `timeout_s`, then drop the rest: the deadline ends those."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._open:
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            pass
        for close in tuple(self._open.values()):
            self._end(close)
        for retry in self._retries:
            retry.cancel()
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)

    def _put(self, closes: Sequence[_Close]) -> None:
        self._waiting.extend(closes)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_waiting())

    async def _send_waiting(self) -> None:
        """Send all that waits: those of one partition together.

        A repeated close is harmless: the first end in log order wins.
        """
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            by_partition: dict[int, list[_Close]] = {}
            for close in waiting:
                if close.followed.fold.end is None:
                    place = close.followed.request.locator.partition
                    by_partition.setdefault(place, []).append(close)
            for partition, closes in by_partition.items():
                for first in range(0, len(closes), limits.CLOSES_PER_RECORD_MAX):
                    batch = closes[first : first + limits.CLOSES_PER_RECORD_MAX]
                    await self._send(partition, batch)

    async def _send(self, partition: int, closes: Sequence[_Close]) -> None:
        value = encode(ReplyRecord(entries=tuple(map(self._entry, closes))))
        try:
            acknowledgement = await self._writer.enqueue(
                REPLIES, partition, value, headers=((BOUNDARY_HEADER, b"1"),)
            )
        except LogError as error:
            self._failed(closes, error)
            return
        acknowledgement.add_done_callback(partial(self._acknowledged, closes))

    def _acknowledged(self, closes: Sequence[_Close], done: "asyncio.Future[Appended]") -> None:
        """An appended close needs nothing more: its end is read back, or its time passes."""
        if done.cancelled():
            return  # the writer is closing with this process
        error = done.exception()
        if isinstance(error, LogError):
            self._failed(closes, error)
        elif error is not None:
            raise error

    def _failed(self, closes: Sequence[_Close], error: LogError) -> None:
        """Try again in a moment what may not have reached the log."""
        if isinstance(error, SendRefused):
            for close in closes:
                self._end(close)
            return

        def again() -> None:
            self._retries.discard(retry)
            self._put([close for close in closes if self._is_open(close)])

        loop = asyncio.get_running_loop()
        retry = loop.call_later(limits.RETRY_PAUSE_MS / 1000, again)
        self._retries.add(retry)

    def _is_open(self, close: _Close) -> bool:
        return self._open.get(close.followed.request.request_id) is close

    def _end(self, close: _Close) -> None:
        """Forget a reply: its end was read back, nothing can bring it, or its time is over."""
        if self._is_open(close):
            del self._open[close.followed.request.request_id]
            close.followed.on_closed = None
            self._reader.forget(close.followed.request.request_id)
        if not self._open:
            self._emptied.set()
            if self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None

    def _set_alarm(self, after_s: float) -> None:
        self._alarm = asyncio.get_running_loop().call_later(after_s, self._ring)

    def _ring(self) -> None:
        """Give up what was appended for certain, or tried for long, and is not seen by this tail:
        it is too far behind."""
        self._alarm = None
        now_s = self._clock.monotonic_s()
        for close in tuple(self._open.values()):
            if close.until_s > now_s:
                self._set_alarm(close.until_s - now_s)
                return
            self._end(close)

    def _entry(self, close: _Close) -> Entry:
        request = close.followed.request
        closed = Closed(
            request_id=request.request_id,
            reason=close.reason,
            by=self._by,
            header=request.header,
            identity=request.identity,
            placement=request.placement,
            message=close.message,
        )
        return Entry(closed=closed)
