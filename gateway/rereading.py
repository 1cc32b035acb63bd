"""Re-reading a reply from the log, from its floor: what refills a mailbox that was dropped.

Owns one range read: a reader of its own, a fold from scratch and the count of tokens that the
client already has. Slow client, resume and replay are this one mechanism (design step 5.6). Called
by `live_reply.py` and `reply_tails.py`; how many run at once is bounded here.
"""

from collections.abc import Awaitable, Callable, Sequence

from gateway.mailbox import Chunk, Mail, accept
from infra.ports import Bounds, LogReader, LogRecord, TopicPartition
from schemas import limits
from schemas.codec import Undecodable, decode
from schemas.fold import ReplyFold, ended_fold
from schemas.idempotency import KeyDone
from schemas.ids import Locator
from schemas.replies import ReplyRecord, fact_of
from schemas.topics import REPLIES

__all__ = ["OpenReader", "Rereading", "RereadingPool"]

OpenReader = Callable[[], Awaitable[LogReader]]
"""Opens a fresh, connected reader. Raises LogUnavailable."""


class Rereading:
    """One reply read again from its floor, past the tokens that were already taken."""

    def __init__(self, reader: LogReader, request_id: str, locator: Locator, taken: int) -> None:
        self.reader = reader
        self._request_id = request_id
        self._partition = TopicPartition(REPLIES, locator.partition)
        self.fold = ReplyFold()
        self.end_offset: int | None = None
        """Where the end stands, once it was read."""
        self._tokens_to_skip = taken
        self.next_offset = locator.floor
        self.usable = True
        """False while a call is under way and after one that failed or was cancelled."""
        reader.assign({self._partition: locator.floor})

    async def read(self) -> list[Mail]:
        """Return the mail of the next records that the client has not had; may be empty.

        Raises: OffsetUnreadable where retention took the floor, LogUnavailable (repeat the call).
        """
        records = await self._poll(limits.POLL_RECORDS_MAX)
        fresh: list[Mail] = []
        for record in records:
            self.next_offset = record.offset + 1
            try:
                facts = [fact_of(entry) for entry in decode(record.value, ReplyRecord).entries]
            except (Undecodable, ValueError):
                continue  # the tail has met it too, and buries it
            for fact in facts:
                if fact.request_id == self._request_id:
                    fresh.extend(accept(self.fold, fact, record.append_time_ms))
            if self.fold.end is not None and self.end_offset is None:
                self.end_offset = record.offset
        return self._skip(fresh)

    async def read_end(self, done: KeyDone) -> bool:
        """Read the one record that ends the reply; return whether it holds all of it.

        A terminal repeats all ids, so a finished reply is one record. Where it is not (a close),
        nothing is lost: the next `read` begins at the floor. Raises as `read` does.
        """
        self.reader.assign({self._partition: done.end_offset})
        records = await self._poll(1)
        self.reader.assign({self._partition: self.next_offset})
        for record in records:
            for entry in decode(record.value, ReplyRecord).entries:
                delta = entry.delta
                if delta is None or delta.request_id != self._request_id or delta.terminal is None:
                    continue
                if record.offset == done.end_offset:
                    self.fold = ended_fold(
                        delta.terminal, record.append_time_ms, done.cached_tokens
                    )
                    self.end_offset = record.offset
                    return True
        return False

    async def bounds(self) -> Bounds:
        """Return the partition's present bounds. Raises LogUnavailable."""
        self.usable = False
        bounds = (await self.reader.bounds([self._partition]))[self._partition]
        self.usable = True
        return bounds

    async def _poll(self, records_max: int) -> Sequence[LogRecord]:
        self.usable = False
        records = await self.reader.poll(timeout_ms=limits.FETCH_WAIT_MS, max_records=records_max)
        self.usable = True
        return records

    def _skip(self, mail: list[Mail]) -> list[Mail]:
        """Drop the tokens that were taken already; records may be cut anywhere."""
        rest: list[Mail] = []
        for entry in mail:
            left = self._tokens_to_skip
            if not left or not isinstance(entry, Chunk):
                rest.append(entry)
                continue
            self._tokens_to_skip -= min(left, len(entry.token_ids))
            if len(entry.token_ids) > left:
                cut = entry.token_ids[left:]
                rest.append(entry._replace(token_ids=cut, cached_tokens=None))
        return rest


class RereadingPool:
    """Opens re-readings, at most `limits.REREADS_MAX` at once; the rest try again later."""

    def __init__(self, open_reader: OpenReader) -> None:
        self._open_reader = open_reader
        self._open_count = 0
        self._idle: list[LogReader] = []
        """Connected readers of earlier re-readings: connecting takes longer than most of them."""

    async def open(self, request_id: str, locator: Locator, taken: int) -> Rereading | None:
        """Start reading, or return None where too many read already. Raises LogUnavailable."""
        if self._open_count >= limits.REREADS_MAX:
            return None
        self._open_count += 1
        try:
            reader = self._idle.pop() if self._idle else await self._open_reader()
        except BaseException:
            self._open_count -= 1
            raise
        return Rereading(reader, request_id, locator, taken)

    async def close(self, rereading: Rereading) -> None:
        """Release a re-reading and its place."""
        self._open_count -= 1
        if rereading.usable and len(self._idle) < limits.REREADS_IDLE_MAX:
            rereading.reader.assign({})
            self._idle.append(rereading.reader)
        else:
            await rereading.reader.close()

    async def stop(self) -> None:
        """Release the readers that are kept for the next one."""
        idle, self._idle = self._idle, []
        for reader in idle:
            await reader.close()
