"""The worker's tail of all partitions of `replies.v1`, with the fold (design rule 6.2).

Owns the folds of all replies since its start, and the shared scans that complete older ones. It
decides nothing about requests: it tells a listener what counted. Called by `engine_workers.worker`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec import Struct, field

from engine_workers.echoes import Echoes
from infra.errors import LogError, OffsetUnreadable
from infra.ports import LogReader, LogRecord, TopicPartition
from schemas import limits
from schemas.codec import decode, encode
from schemas.fold import End, ReplyFold
from schemas.replies import Closed, Delta, ReplyRecord, Start, fact_of
from schemas.topics import REPLIES
from schemas.usage import UsageRecorded, usage_of

Fact = Start | Delta | Closed


class TailedReply(Struct):
    """What the tail holds of one reply."""

    partition: int
    first_offset: int
    complete_from: int
    """The fold is complete for a floor at or above this."""
    next_offset: int = 0
    """Facts below this are in the fold already (a scan ran ahead of the tail)."""
    fold: ReplyFold = field(default_factory=ReplyFold)
    usage_event: bytes | None = None
    """The usage, encoded; set at the end, when the fold is let go. Many thousand are kept."""
    fresh_usage: UsageRecorded | None = None
    """The same while the listener hears of the end, who nearly always is the only one to ask."""

    @property
    def usage(self) -> UsageRecorded | None:
        """The usage of an ended reply."""
        if self.usage_event is None or self.fresh_usage is not None:
            return self.fresh_usage
        return decode(self.usage_event, UsageRecorded)


class TailListener(Protocol):
    """Who wants to hear of facts; called in log order on the tail's loop."""

    def on_fact(self, fact: Fact, counted: bool, reply: TailedReply) -> None:
        """A fact of any reply was folded; `counted` is the fold's verdict."""

    def on_complete(self, request_id: str, reply: TailedReply) -> None:
        """A reply that needed a scan is complete now."""

    def on_unreadable(self, request_id: str) -> None:
        """A reply's floor lies below the log's start: nobody can know its fold any more."""


class _Scan(Struct):
    """Ids of one partition waiting for, or in, a read from the lowest floor among them."""

    wanted: dict[str, int] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None


class ReplyTail:
    """Folds every reply from the tail's start on; completes older ones by scans."""

    def __init__(
        self,
        reader: LogReader,
        open_reader: Callable[[], Awaitable[LogReader]],
        listener: TailListener,
        echoes: Echoes,
        *,
        ended_max: int = limits.TAIL_ENDED_IDS_MAX,
    ) -> None:
        self._reader = reader
        self._open_reader = open_reader
        self._listener = listener
        self._echoes = echoes
        self._ended_max = ended_max
        self._replies: dict[str, TailedReply] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._start: dict[int, int] = {}
        self._scans: dict[int, _Scan] = {}

    async def start(self) -> None:
        """Take position at the ends of all partitions; must precede joining the group."""
        partitions = [TopicPartition(REPLIES, index) for index in range(limits.REPLY_PARTITIONS)]
        bounds = await self._reader.bounds(partitions)
        self._start = {partition.partition: bounds[partition].end for partition in partitions}
        self._scans = {partition.partition: _Scan() for partition in partitions}
        self._reader.assign({partition: bounds[partition].end for partition in partitions})

    async def run(self) -> None:
        """Read for ever; an unreachable log is waited for."""
        while True:
            try:
                await self.run_once(timeout_ms=limits.STATUS_LOST_MS)
            except OffsetUnreadable:
                raise  # the tail fell out of the retention: only a restart makes it whole
            except LogError:
                await asyncio.sleep(limits.COMMIT_EVERY_MS / 1000)

    async def run_once(self, *, timeout_ms: int) -> None:
        """Fold what has come since the last turn. Raises LogError."""
        for record in await self._reader.poll(
            timeout_ms=timeout_ms, max_records=limits.POLL_RECORDS_MAX
        ):
            self._fold(record)
        self._forget()

    def look_up(self, request_id: str, partition: int, floor: int) -> TailedReply | None:
        """Return the reply where its fold is complete; otherwise None, and a scan has begun.

        The listener hears `on_complete` or `on_unreadable` when the scan is through.
        """
        reply = self._replies.get(request_id)
        complete_from = reply.complete_from if reply else self._start[partition]
        if floor >= complete_from:
            if reply is None:
                reply = TailedReply(
                    partition=partition, first_offset=floor, complete_from=complete_from
                )
                self._replies[request_id] = reply
            return reply
        scan = self._scans[partition]
        scan.wanted[request_id] = floor
        if scan.task is None or scan.task.done():
            scan.task = asyncio.get_running_loop().create_task(self._scan(partition))
        return None

    def let_go(self, request_id: str) -> None:
        """Drop a reply that never came to the log; an ended one is kept for redeliveries."""
        reply = self._replies.get(request_id)
        if reply is not None and reply.fold.end is None and reply.fold.origin is None:
            del self._replies[request_id]
        for scan in self._scans.values():
            scan.wanted.pop(request_id, None)

    async def close(self) -> None:
        """End the scans; the reader is its owner's."""
        tasks = [scan.task for scan in self._scans.values() if scan.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _fold(self, record: LogRecord) -> None:
        for fact in self._echoes.read(record.value) or _facts_of(record):
            reply = self._replies.get(fact.request_id)
            if reply is None:
                reply = TailedReply(
                    partition=record.partition,
                    first_offset=record.offset,
                    complete_from=self._start[record.partition],
                )
                self._replies[fact.request_id] = reply
            if record.offset < reply.next_offset or record.partition != reply.partition:
                continue
            counted = reply.fold.apply(fact, record.append_time_ms)
            if counted and reply.fold.end is not None:
                self._end(fact.request_id, reply)
            self._listener.on_fact(fact, counted, reply)
            reply.fresh_usage = None

    def _end(self, request_id: str, reply: TailedReply) -> None:
        end = reply.fold.end
        assert end is not None, "only an ended reply is put away"
        reply.fresh_usage = usage_of(request_id, reply.fold)
        reply.usage_event = encode(reply.fresh_usage)
        # After the end nothing counts: of the fold only the end itself is needed, without its ids.
        reply.fold = ReplyFold(
            end=End(terminal=None, close_reason=end.close_reason, append_time_ms=end.append_time_ms)
        )
        self._ended[request_id] = None

    def _forget(self) -> None:
        while len(self._ended) > self._ended_max:
            request_id, _ = self._ended.popitem(last=False)
            reply = self._replies.pop(request_id)
            # Its floor is at or below its first fact: from now on such floors need a scan.
            self._start[reply.partition] = max(self._start[reply.partition], reply.first_offset + 1)

    async def _scan(self, partition: int) -> None:
        """Complete the wanted ids of a partition, round by round, until none are left."""
        scan = self._scans[partition]
        reader = await self._open_reader()
        try:
            while scan.wanted:
                try:
                    await self._scan_round(reader, partition, scan)
                except LogError:
                    await asyncio.sleep(limits.COMMIT_EVERY_MS / 1000)
        finally:
            await reader.close()

    async def _scan_round(self, reader: LogReader, partition: int, scan: _Scan) -> None:
        """Read once from the lowest wanted floor up to the tail; ids wanted meanwhile wait."""
        place = TopicPartition(REPLIES, partition)
        log_start = (await reader.bounds([place]))[place].start
        for request_id in [name for name, floor in scan.wanted.items() if floor < log_start]:
            del scan.wanted[request_id]
            self._listener.on_unreadable(request_id)
        if not scan.wanted:
            return
        folds = {request_id: ReplyFold() for request_id in scan.wanted}
        floors = dict(scan.wanted)
        reader.assign({place: min(floors.values())})
        while reader.position(place) < self._reader.position(place):
            for record in await reader.poll(
                timeout_ms=limits.FETCH_WAIT_MS, max_records=limits.POLL_RECORDS_MAX
            ):
                _fold_wanted(record, folds)
        self._adopt(partition, reader.position(place), folds, floors)

    def _adopt(
        self, partition: int, next_offset: int, folds: dict[str, ReplyFold], floors: dict[str, int]
    ) -> None:
        """Put scanned folds in the place of the tail's partial ones.

        There is no await since the scan's last read, so the tail cannot have moved past it.
        """
        scan = self._scans[partition]
        for request_id, fold in folds.items():
            if scan.wanted.pop(request_id, None) is None:
                continue  # nobody wants it any more
            self._ended.pop(request_id, None)
            reply = TailedReply(
                partition=partition,
                first_offset=floors[request_id],
                complete_from=floors[request_id],
                next_offset=next_offset,
                fold=fold,
            )
            self._replies[request_id] = reply
            if fold.end is not None:
                self._end(request_id, reply)
            self._listener.on_complete(request_id, reply)
            reply.fresh_usage = None


def _fold_wanted(record: LogRecord, folds: dict[str, ReplyFold]) -> None:
    for fact in _facts_of(record):
        fold = folds.get(fact.request_id)
        if fold is not None:
            fold.apply(fact, record.append_time_ms)


def _facts_of(record: LogRecord) -> Sequence[Fact]:
    """Return what a record says; nothing where no reader can count it, so that all agree."""
    try:
        return [fact_of(entry) for entry in decode(record.value, ReplyRecord).entries]
    except ValueError:  # undecodable, or an entry of nothing
        return ()
