"""Results of items on `batch-results.v1`: appended one by one, read as a range of the log.

Owns which results count: of each index the first in log order, up to where the batch's end says.
Called by the runner and by the handlers that show results.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from msgspec import Struct

from gateway.batches.ranges import read_from
from gateway.batches.rendering import error_line, output_line
from gateway.rereading import OpenReader
from infra.errors import LogError, OffsetUnreadable, SendRefused
from infra.ports import Clock, LogReader, LogRecord, LogWriter, TopicPartition
from schemas import limits
from schemas.batches import BatchCreated, ItemEnded, ItemOutcome, ItemsEnded
from schemas.codec import Undecodable, decode, encode
from schemas.requests import Dialect
from schemas.topics import BATCH_RESULTS

__all__ = ["Results", "Tally", "place_of"]

_BATCH_HEADER = "batch"


class Tally(Struct, frozen=True, kw_only=True):
    """What the results of a batch add up to, below an offset."""

    results_end: int
    counts: Mapping[ItemOutcome, int]
    output_bytes: int = 0
    errors_bytes: int = 0


class Results:
    """Writes and reads results of one gateway."""

    def __init__(self, *, writer: LogWriter, open_reader: OpenReader, clock: Clock) -> None:
        self._writer = writer
        self._open_reader = open_reader
        self._clock = clock

    async def add(self, batch: BatchCreated, items: Sequence[ItemEnded]) -> None:
        """Append results, again until that is acknowledged: copies are harmless.

        Raises: SendRefused where the log will never take them.
        """
        value = encode(ItemsEnded(batch_id=batch.batch_id, items=tuple(items)))
        if len(value) > limits.EVENT_BYTES_MAX:
            raise SendRefused(f"a result of {len(value)} bytes")
        name = batch.batch_id.encode()
        while True:
            try:
                await self._writer.send(
                    BATCH_RESULTS,
                    batch.results_partition,
                    value,
                    key=name,
                    headers=((_BATCH_HEADER, name),),
                )
            except SendRefused:
                raise
            except LogError:
                await asyncio.sleep(limits.RETRY_PAUSE_MS / 1000)
            else:
                return

    async def read(
        self, batch: BatchCreated, end: int | None = None
    ) -> AsyncGenerator[tuple[ItemEnded, ...], None]:
        """Yield the results below an offset, or all there are now; each index once.

        Raises: OffsetUnreadable where they are not kept any more, LogUnavailable.
        """
        reader = await self._open_reader()
        try:
            async with aclosing(self._read(reader, batch, end)) as reading:
                async for items in reading:
                    yield items
        finally:
            await reader.close()

    async def tally(self, batch: BatchCreated) -> Tally:
        """Return what all results that there are now add up to; none where they are not kept.

        Raises: LogUnavailable.
        """
        place = place_of(batch)
        reader = await self._open_reader()
        try:
            end = (await reader.bounds([place]))[place].end
            counts, output_bytes, errors_bytes = Counter[ItemOutcome](), 0, 0
            async with aclosing(self._read(reader, batch, end)) as reading:
                async for items in reading:
                    counts.update(item.outcome for item in items)
                    if batch.dialect is not Dialect.OPENAI:
                        continue  # whose results are no files
                    for item in items:
                        output_bytes += len(output_line(batch.batch_id, item))
                        errors_bytes += len(error_line(batch.batch_id, item))
        except OffsetUnreadable:
            return Tally(results_end=batch.results_floor, counts={})
        finally:
            await reader.close()
        return Tally(
            results_end=end, counts=counts, output_bytes=output_bytes, errors_bytes=errors_bytes
        )

    async def _read(
        self, reader: LogReader, batch: BatchCreated, end: int | None
    ) -> AsyncGenerator[tuple[ItemEnded, ...], None]:
        place = place_of(batch)
        bounds = (await reader.bounds([place]))[place]
        end = bounds.end if end is None else end
        if batch.results_floor < bounds.start and end > batch.results_floor:
            raise OffsetUnreadable(place.topic, place.partition, batch.results_floor)
        seen = set[int]()
        if end <= batch.results_floor:
            return
        async with aclosing(
            read_from(
                reader,
                self._clock,
                place,
                batch.results_floor,
                records_max=limits.BATCH_READ_RECORDS_MAX,
            )
        ) as reading:
            unpaused = 0
            async for records in reading:
                for record in records:
                    if record.offset < end and (fresh := _fresh(record, batch, seen)):
                        yield fresh
                        unpaused += len(fresh)
                        if unpaused >= limits.BATCH_LINES_PER_TURN:
                            unpaused = 0
                            await asyncio.sleep(0)  # others' turn: a long read waits for nothing
                if records[-1].offset + 1 >= end:
                    return


def place_of(batch: BatchCreated) -> TopicPartition:
    """Return the partition that holds a batch's results."""
    return TopicPartition(BATCH_RESULTS, batch.results_partition)


def _fresh(record: LogRecord, batch: BatchCreated, seen: set[int]) -> tuple[ItemEnded, ...]:
    """Return the results of a record whose index has none yet; others' records stay undecoded."""
    if (_BATCH_HEADER, batch.batch_id.encode()) not in record.headers:
        return ()
    try:
        items = decode(record.value, ItemsEnded).items
    except Undecodable:
        return ()  # what it held counts as errored in the end
    fresh = []
    for item in items:
        if item.index not in seen:
            seen.add(item.index)
            fresh.append(item)
    return tuple(fresh)
