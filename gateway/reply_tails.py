"""Any reply of the log, wherever it lies: tails of other gateways' partitions, and the way in.

Owns the tails beside this gateway's own one, opened when first needed and closed when idle, and
`find`: a reply read once from its floor, then followed by its partition's tail. Called by
`keyed.py` and `resumption.py`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gateway.errors import LogAway, Overloaded, ReplyUnknown
from gateway.reader import Asked, Followed, ReplyReader
from gateway.rereading import OpenReader, Rereading, RereadingPool
from infra.errors import LogError, LogUnavailable, OffsetUnreadable
from infra.ports import Clock, LogReader
from schemas import limits
from schemas.fold import Origin
from schemas.idempotency import KeyDone
from schemas.ids import Locator

__all__ = ["AskedBy", "ReplyTails"]

AskedBy = Callable[[Origin | None], Asked]
"""Returns what is known of a reply's request. Raises ReplyUnknown where that is too little."""


@dataclass(slots=True, kw_only=True)
class _Foreign:
    tail: ReplyReader
    reader: LogReader
    task: "asyncio.Task[None]"
    used_s: float


class ReplyTails:
    """All tails of this gateway; its own one is run by whoever made it."""

    def __init__(
        self,
        *,
        own: ReplyReader,
        open_reader: OpenReader,
        rereadings: RereadingPool,
        clock: Clock,
    ) -> None:
        self._own = own
        self._open_reader = open_reader
        self._rereadings = rereadings
        self._clock = clock
        self._foreign: dict[int, _Foreign] = {}
        self._opening = asyncio.Lock()
        self._finding: dict[str, asyncio.Task[Followed]] = {}

    def tail_of(self, locator: Locator) -> ReplyReader:
        """Return the tail that reads a reply's partition, after `find`."""
        foreign = self._foreign.get(locator.partition)
        return self._own if foreign is None else foreign.tail

    def forget(self, request_id: str) -> None:
        """Follow a reply no longer, whichever tail does."""
        self._own.forget(request_id)
        for foreign in self._foreign.values():
            foreign.tail.forget(request_id)

    async def find(
        self, request_id: str, locator: Locator, asked_by: AskedBy, done: KeyDone | None = None
    ) -> Followed:
        """Return a reply with everything accepted so far, followed from here on if it runs.

        Where `done` tells the end of a finished one, that one record is read instead of the range.
        Callers that ask at the same time share one read. Raises ReplyUnknown where its floor is
        not in the log, LogAway where the log cannot be read in time.
        """
        if not 0 <= locator.partition < limits.REPLY_PARTITIONS:
            raise ReplyUnknown("no such reply")
        if not self._own.started:
            raise Overloaded("Overloaded: the platform is starting")
        finding = self._finding.get(request_id)
        if finding is None:
            finding = asyncio.create_task(self._find(request_id, locator, asked_by, done))
            self._finding[request_id] = finding
            finding.add_done_callback(lambda task: self._found(request_id, task))
        return await asyncio.shield(finding)

    async def sweep(self) -> None:
        """Close tails of other partitions that nobody has needed for a while."""
        async with self._opening:
            now_s = self._clock.monotonic_s()
            for partition, foreign in tuple(self._foreign.items()):
                if foreign.tail.count:
                    foreign.used_s = now_s
                elif now_s - foreign.used_s >= limits.FOREIGN_TAIL_IDLE_MS / 1000:
                    del self._foreign[partition]
                    await _stop(foreign)

    async def run(self) -> None:
        """Sweep for ever."""
        while True:
            await asyncio.sleep(limits.FOREIGN_TAIL_IDLE_MS / 1000)
            await self.sweep()

    async def stop(self) -> None:
        """Release everything that this object opened."""
        for finding in tuple(self._finding.values()):
            finding.cancel()
        await asyncio.gather(*self._finding.values(), return_exceptions=True)
        for foreign in tuple(self._foreign.values()):
            await _stop(foreign)
        self._foreign.clear()
        await self._rereadings.stop()

    def _found(self, request_id: str, task: "asyncio.Task[Followed]") -> None:
        self._finding.pop(request_id, None)
        if not task.cancelled():
            task.exception()  # whoever still waits gets it too

    async def _find(
        self, request_id: str, locator: Locator, asked_by: AskedBy, done: KeyDone | None
    ) -> Followed:
        try:
            async with asyncio.timeout(limits.REPLY_FIND_MS / 1000):
                tail = await self._tail(locator.partition)
                while True:
                    followed = tail.find(request_id)
                    if followed is not None:
                        return followed
                    reading = await self._rereadings.open(request_id, locator, 0)
                    if reading is not None:
                        break
                    await asyncio.sleep(limits.RETRY_PAUSE_MS / 1000)
        except (TimeoutError, LogError) as error:
            raise LogAway("Service unavailable: the reply cannot be read now") from error
        try:
            return await self._read(tail, reading, asked_by, request_id, done)
        except OffsetUnreadable as error:
            raise ReplyUnknown("the reply is not kept any more") from error
        except LogUnavailable as error:
            raise LogAway("Service unavailable: the reply cannot be read now") from error
        finally:
            await self._rereadings.close(reading)

    async def _read(
        self,
        tail: ReplyReader,
        reading: Rereading,
        asked_by: AskedBy,
        request_id: str,
        done: KeyDone | None,
    ) -> Followed:
        """Read from the floor to where the tail stands, then let the tail go on."""
        bounds = await reading.bounds()
        if not bounds.start <= reading.next_offset <= bounds.end:
            raise ReplyUnknown("the reply is not kept any more")
        if done is not None and bounds.start <= done.end_offset < bounds.end:
            await reading.read_end(done)
        while reading.fold.end is None:
            # What a client has seen elsewhere stood in the log before it asked: below this end.
            if reading.next_offset >= max(bounds.end, tail.next_offset):
                break
            await reading.read()
        followed = tail.find(request_id)  # it may have been sent from here meanwhile
        if followed is not None:
            return followed
        followed = Followed(
            request=asked_by(reading.fold.origin),
            owned=False,
            fold=reading.fold,
            complete_to=reading.next_offset,
        )
        if reading.end_offset is None:
            tail.follow(followed)
        else:
            followed.finish(reading.end_offset)
        return followed

    async def _tail(self, partition: int) -> ReplyReader:
        """Return the tail of a partition, started. Raises LogUnavailable."""
        if partition == self._own.partition:
            return self._own
        async with self._opening:
            foreign = self._foreign.get(partition)
            if foreign is None:
                reader = await self._open_reader()
                tail = ReplyReader(reader=reader, partition=partition)
                try:
                    await tail.start()
                except BaseException:
                    await reader.close()
                    raise
                foreign = self._foreign[partition] = _Foreign(
                    tail=tail,
                    reader=reader,
                    task=asyncio.create_task(tail.run()),
                    used_s=self._clock.monotonic_s(),
                )
            foreign.used_s = self._clock.monotonic_s()
            return foreign.tail


async def _stop(foreign: _Foreign) -> None:
    foreign.task.cancel()
    await asyncio.gather(foreign.task, return_exceptions=True)
    await foreign.reader.close()
