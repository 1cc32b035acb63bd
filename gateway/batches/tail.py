"""The tail of `batches.v1`: every gateway reads all facts back and so can answer for any batch.

Owns the position in all its partitions. Sends nothing (`ledger.py`). Run by the composition root.
"""

import asyncio
from collections.abc import Callable

from gateway.batches.book import BatchBook
from infra.control import Bury
from infra.errors import LogError, LogUnavailable, OffsetUnreadable
from infra.ports import Clock, LogReader, TopicPartition
from schemas import limits
from schemas.batches import BatchRecord
from schemas.codec import Undecodable, decode
from schemas.topics import BATCHES

__all__ = ["BatchTail"]

_PLACES = tuple(TopicPartition(BATCHES, partition) for partition in range(limits.BATCH_PARTITIONS))


class BatchTail:
    """Keeps a BatchBook current from a reader of its own."""

    def __init__(
        self,
        *,
        reader: LogReader,
        clock: Clock,
        book: BatchBook,
        on_change: Callable[[], None] = lambda: None,
        bury: Bury | None = None,
    ) -> None:
        """Take the parts; `on_change` is called after each turn that read something."""
        self._reader = reader
        self._clock = clock
        self._book = book
        self._on_change = on_change
        self._bury = bury
        self._next: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}

    @property
    def caught_up(self) -> bool:
        """True once everything that stood in the topic at start has been read."""
        return bool(self._next) and all(self._next[p] >= self._ends[p] for p in _PLACES)

    async def end_of(self, place: TopicPartition) -> int:
        """Return where the next record of any partition will stand. Raises LogUnavailable."""
        return (await self._reader.bounds([place]))[place].end

    async def read_up_to(self, partition: int, offset: int) -> None:
        """Wait until the record at an offset has been read. Raises LogUnavailable, in time."""
        await self._wait({_PLACES[partition]: offset + 1})

    async def catch_up(self, partition: int | None = None) -> None:
        """Wait until all that stands in a partition now, or in all of them, has been read.

        Raises: LogUnavailable where the log does not tell or is not read in time.
        """
        places = _PLACES if partition is None else (_PLACES[partition],)
        bounds = await self._reader.bounds(places)
        await self._wait({place: bounds[place].end for place in places})

    async def run(self) -> None:
        """Read for ever; an unreachable log is waited for and nothing is skipped."""
        while True:
            try:
                await self.run_once()
            except LogError:
                await asyncio.sleep(limits.RETRY_PAUSE_MS / 1000)

    async def run_once(self) -> None:
        """Take what has come since the last turn. Raises LogUnavailable; nothing was taken."""
        if not self._next:
            bounds = await self._reader.bounds(_PLACES)
            self._ends = {place: bounds[place].end for place in _PLACES}
            self._next = {place: bounds[place].start for place in _PLACES}
            self._reader.assign(dict(self._next))
        try:
            records = await self._reader.poll(
                timeout_ms=limits.FETCH_WAIT_MS, max_records=limits.POLL_RECORDS_MAX
            )
        except OffsetUnreadable:  # retention overtook the tail: only what is too old to count
            self._next.clear()
            return
        poison = []
        for record in records:
            try:
                self._book.apply(decode(record.value, BatchRecord), record.append_time_ms)
            except Undecodable as error:
                poison.append((record, str(error)))
            self._next[TopicPartition(record.topic, record.partition)] = record.offset + 1
        if records:
            self._on_change()
        for record, reason in poison:
            if self._bury is not None:
                await self._bury(record, reason)

    async def _wait(self, wanted: dict[TopicPartition, int]) -> None:
        until_s = self._clock.monotonic_s() + limits.REPLY_FIND_MS / 1000
        while any(self._next.get(place, -1) < end for place, end in wanted.items()):
            if self._clock.monotonic_s() >= until_s:
                raise LogUnavailable("batches are not read in time")
            await asyncio.sleep(limits.CLAIM_POLL_MS / 1000)
