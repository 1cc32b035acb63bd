"""Reading a partition from an offset on, for as long as somebody takes records.

Owns what makes such a read fail: records that are not kept any more, and a log that is silent where
there must be some.
"""

from collections.abc import AsyncGenerator, Sequence

from infra.errors import LogUnavailable, OffsetUnreadable
from infra.ports import Clock, LogReader, LogRecord, TopicPartition
from schemas import limits

__all__ = ["read_from"]


async def read_from(
    reader: LogReader, clock: Clock, place: TopicPartition, offset: int, *, records_max: int
) -> AsyncGenerator[Sequence[LogRecord], None]:
    """Yield what stands there, up to `records_max` at once; the caller knows how far it goes.

    Raises: OffsetUnreadable where retention took the offset, LogUnavailable.
    """
    reader.assign({place: offset})
    until_s = clock.monotonic_s() + limits.REPLY_FIND_MS / 1000
    while True:
        try:
            records = await reader.poll(timeout_ms=limits.FETCH_WAIT_MS, max_records=records_max)
        except OffsetUnreadable as error:
            if error.offset < (await reader.bounds([place]))[place].start:
                raise
            # Beyond the end: a broker that has just taken over may not know all of it yet.
            raise LogUnavailable(str(error)) from error
        if records:
            yield records
            until_s = clock.monotonic_s() + limits.REPLY_FIND_MS / 1000
        elif clock.monotonic_s() >= until_s:
            raise LogUnavailable(f"{place} is silent at {reader.position(place)}")
