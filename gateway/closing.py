"""Closing replies from outside: append `Closed` until the log shows an end.

Owns the retries of this gateway's own closes, each within a bound. Which reason applies is decided
by `live_reply.py`; whether the close counted is decided by the log. Called by live replies,
submission (sends of unknown outcome) and the drain.
"""

import asyncio
from typing import Protocol

from gateway.reader import Followed
from infra.errors import LogError, SendRefused
from infra.ports import Clock, LogWriter
from schemas import limits
from schemas.codec import encode
from schemas.replies import BOUNDARY_HEADER, Closed, CloseReason, Entry, ReplyRecord
from schemas.topics import REPLIES

__all__ = ["Closer", "Follower"]


class Follower(Protocol):
    """Who follows the replies that are closed: one tail, or all of a gateway's."""

    def forget(self, request_id: str) -> None:
        """Follow a reply no longer; unknown ids are ignored."""


class Closer:
    """Appends closes in the background, so that a client that left is not waited for."""

    def __init__(self, *, writer: LogWriter, clock: Clock, reader: Follower, by: str) -> None:
        """Take the parts; `reader` forgets a reply once its close is through."""
        self._writer = writer
        self._clock = clock
        self._reader = reader
        self._by = by
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def pending(self) -> int:
        """How many closes have not been read back yet."""
        return len(self._tasks)

    def close(self, followed: Followed, reason: CloseReason, message: str | None = None) -> None:
        """Ask for the end of a reply; only the first call for it has an effect."""
        if followed.closing is not None or followed.fold.end is not None:
            return
        followed.closing = reason
        task = asyncio.create_task(self._close(followed, reason, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self, timeout_s: float) -> None:
        """Give pending closes up to `timeout_s`, then drop the rest: the deadline ends those."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _close(self, followed: Followed, reason: CloseReason, message: str | None) -> None:
        """Send until acknowledged, then wait until an end is read back; forget the reply after.

        A repeated close is harmless: the first end in log order wins.
        """
        value = self._record(followed, reason, message)
        until_s = self._clock.monotonic_s() + limits.CLOSE_RETRY_MS / 1000
        partition = followed.request.locator.partition
        try:
            while not followed.ended.is_set() and self._clock.monotonic_s() < until_s:
                try:
                    await self._writer.send(
                        REPLIES, partition, value, headers=((BOUNDARY_HEADER, b"1"),)
                    )
                except SendRefused:
                    return
                except LogError:
                    await asyncio.sleep(limits.RETRY_PAUSE_MS / 1000)
                    continue
                async with asyncio.timeout(max(0.0, until_s - self._clock.monotonic_s())):
                    await followed.ended.wait()
        except TimeoutError:
            pass  # appended for certain; this tail is too far behind to see it
        finally:
            self._reader.forget(followed.request.request_id)

    def _record(self, followed: Followed, reason: CloseReason, message: str | None) -> bytes:
        request = followed.request
        closed = Closed(
            request_id=request.request_id,
            reason=reason,
            by=self._by,
            header=request.header,
            identity=request.identity,
            placement=request.placement,
            message=message,
        )
        return encode(ReplyRecord(entries=(Entry(closed=closed),)))
