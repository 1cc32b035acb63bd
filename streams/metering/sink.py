"""The sink: polls `usage.v1`, inserts into the usage store, recomputes dirty hours, then commits.

Owns one group member and the order of these steps: an offset is committed only after the store has
said that its row is in. While the store is away the same rows are tried again with back-off, and
the paused group is polled meanwhile, so that the member is not ejected. Called by
`streams/metering/__main__.py` and the simulator.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from infra.dead_letters import DeadLetters
from infra.errors import CommitRefused, LogError, StoreRejected, StoreUnavailable
from infra.metrics import Metrics
from infra.ports import Clock, GroupReader, LogRecord, TopicPartition, UsageRow, UsageStore
from schemas import limits
from schemas.codec import Undecodable, decode
from schemas.topics import USAGE
from schemas.usage import UsageRecorded
from streams.metering.intake import Held, Intake, Verdict, commit_pause_s

GROUP = "metering"
IDLE_POLL_MS = 1_000
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteringDeps:
    """What a sink works with."""

    group: GroupReader
    store: UsageStore
    dead_letters: DeadLetters
    clock: Clock
    metrics: Metrics
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class MeteringSink:
    """One member of the group `metering`."""

    def __init__(self, deps: MeteringDeps) -> None:
        self._deps = deps
        self._group, self._clock = deps.group, deps.clock
        self._intake = Intake()
        self._epoch = 0
        self._paused = False
        self._commit_at_s = 0.0
        self._failing = False
        self._retry_at_s = 0.0
        self._retry_ms = limits.METERING_RETRY_MS_MIN

    @property
    def is_ready(self) -> bool:
        """Tell whether it has joined its group and the store takes its rows."""
        return self._epoch > 0 and not self._failing

    async def join(self) -> None:
        """Take part in the group. Raises LogUnavailable."""
        await self._group.join([USAGE])

    async def run(self) -> None:
        """Turn for ever; a broker that is away is waited for."""
        away = False
        while True:
            try:
                await self.run_once()
            except LogError as error:
                if not away:
                    _log.warning("log unavailable", error=str(error))
                away = True
                await self._deps.sleep(limits.METERING_RETRY_MS_MIN / 1_000)
            else:
                if away:
                    _log.info("log available again")
                away = False

    async def run_once(self) -> None:
        """Poll, take, insert, refresh and commit: each where it is due. Raises LogError."""
        await self._follow_assignment()
        self._pause_or_resume()
        await self._take(await self._poll())
        now_s = self._clock.monotonic_s()
        if self._is_blocked(now_s):
            return
        insert_due_s = self._intake.insert_due_s()
        if insert_due_s is not None and now_s >= insert_due_s:
            await self._insert()
        if self._intake.committable() and now_s >= self._commit_at_s:
            await self._refresh_and_commit()

    async def drain(self) -> None:
        """Store and commit what was read, once, then leave the group: the rest comes again."""
        try:
            if self._intake.insert_due_s() is not None:
                await self._insert()
            if self._intake.committable():
                await self._refresh_and_commit()
        except LogError as error:
            _log.warning("left without a last commit", error=str(error))
        await self._group.leave()

    async def _follow_assignment(self) -> None:
        """Start anew where the group has rebalanced (design rule 9)."""
        assignment = self._group.assignment()
        if assignment.epoch == self._epoch:
            return
        committed = await self._group.committed(assignment.partitions)
        for partition, offset in self._intake.begin(assignment.partitions, committed).items():
            self._group.seek(partition, offset)
        self._epoch, self._paused = assignment.epoch, False
        held = sorted(partition.partition for partition in assignment.partitions)
        _log.info("assigned", epoch=assignment.epoch, partitions=held)

    def _pause_or_resume(self) -> None:
        wanted = self._is_blocked(self._clock.monotonic_s()) or self._intake.is_full
        if wanted == self._paused:
            return
        partitions = self._group.assignment().partitions
        (self._group.pause if wanted else self._group.resume)(partitions)
        self._paused = wanted

    async def _poll(self) -> Sequence[LogRecord]:
        room = limits.METERING_BATCH_ROWS_MAX - len(self._intake.pending)
        return await self._group.poll(timeout_ms=self._wait_ms(), max_records=max(1, room))

    def _wait_ms(self) -> int:
        """Return how long the next poll may wait until something else is due."""
        now_s = self._clock.monotonic_s()
        due = [now_s + IDLE_POLL_MS / 1_000]
        if self._is_blocked(now_s):
            due = [self._retry_at_s]
        else:
            insert_due_s = self._intake.insert_due_s()
            if insert_due_s is not None:
                due.append(insert_due_s)
            if self._intake.committable():
                due.append(self._commit_at_s)
        return max(1, round((min(due) - now_s) * 1_000))

    async def _take(self, records: Sequence[LogRecord]) -> None:
        if self._group.assignment().epoch != self._epoch:
            # They may be of either side of a rebalance; the next turn seeks.
            self._intake.note_dropped(records)
            return
        stopped: set[TopicPartition] = set()
        for record in records:
            partition = TopicPartition(record.topic, record.partition)
            if partition in stopped:
                continue
            verdict = self._intake.judge(record)
            if verdict is Verdict.SEEK_BACK or (
                verdict is Verdict.TAKE and not await self._hold(record)
            ):
                # Later records of this partition are read again after it.
                stopped.add(partition)
                self._group.seek(partition, self._intake.expected.get(partition, record.offset))
        self._deps.metrics.count("log_records_read", len(records), topic=USAGE)
        self._deps.metrics.gauge("usage_lag_records", len(self._intake.pending))

    async def _hold(self, record: LogRecord) -> bool:
        """Decode and hold a record, or bury it; False where it could not be buried now."""
        row: UsageRow | None = None
        try:
            usage = decode(record.value, UsageRecorded)
            row = UsageRow(usage=usage, partition=record.partition, offset=record.offset)
        except Undecodable as error:
            if not await self._bury(record, str(error)):
                return False
        self._intake.take(record, row, self._clock.monotonic_s())
        return True

    async def _bury(self, record: LogRecord, reason: str) -> bool:
        place = {"partition": record.partition, "offset": record.offset, "reason": reason}
        try:
            buried = await self._deps.dead_letters.bury(record, reason)
        except LogError as error:
            buried, place["error"] = False, str(error)
        if buried:
            self._recovered()
            self._deps.metrics.count("dead_letters", source=record.topic)
            _log.error("usage event buried", **place)
        else:
            self._back_off("dead letters", **place)
        return buried

    async def _insert(self) -> None:
        """Insert the pending rows; on failure they stay pending and the same ones are tried
        again."""
        started_s = self._clock.monotonic_s()
        held = self._intake.pending
        try:
            if not await self._store(held):
                return
        except StoreUnavailable as error:
            self._deps.metrics.count("usage_insert_failures")
            self._back_off("insert", error=str(error), rows=len(held))
            return
        self._recovered()
        self._deps.metrics.count("usage_rows_inserted", len(held))
        self._deps.metrics.observe("usage_insert_seconds", self._clock.monotonic_s() - started_s)
        self._intake.note_stored()

    async def _store(self, held: Sequence[Held]) -> bool:
        """Insert rows; halve down to those that the store refuses and bury them.

        Returns False where one could not be buried now: all are tried again. Raises
        StoreUnavailable.
        """
        try:
            await self._deps.store.insert([one.row for one in held])
        except StoreRejected as error:
            if len(held) == 1:
                return await self._bury(held[0].record, f"usage store: {error}")
            middle = len(held) // 2
            return await self._store(held[:middle]) and await self._store(held[middle:])
        return True

    async def _refresh_and_commit(self) -> None:
        """Recompute the rollups of dirty hours, then commit; a crash in between repeats both."""
        started_s = self._clock.monotonic_s()
        try:
            await self._deps.store.refresh(list(self._intake.dirty.values()))
        except StoreUnavailable as error:
            self._back_off("refresh", error=str(error))
            return
        took_s = self._clock.monotonic_s() - started_s
        self._commit_at_s = started_s + commit_pause_s(took_s)
        self._intake.dirty.clear()
        self._recovered()
        offsets = self._intake.committable()
        try:
            await self._group.commit(offsets)
        except CommitRefused as error:
            _log.info("commit refused; a rebalance follows", error=str(error))
            return
        self._intake.committed.update(offsets)

    def _is_blocked(self, now_s: float) -> bool:
        return self._failing and now_s < self._retry_at_s

    def _recovered(self) -> None:
        if self._failing:
            _log.info("metering goes on")
        self._failing, self._retry_ms = False, limits.METERING_RETRY_MS_MIN

    def _back_off(self, step: str, **why: object) -> None:
        if not self._failing:
            _log.warning("metering is held up; trying again", step=step, **why)
        self._failing = True
        self._retry_at_s = self._clock.monotonic_s() + self._retry_ms / 1_000
        self._retry_ms = min(2 * self._retry_ms, limits.METERING_RETRY_MS_MAX)
