"""The lanes: taking request records, following assignments, committing (design rules 6.5, 6.9).

Owns positions, pauses and commits. Callbacks of the group only note the newest assignment; this
loop acts on it: lost lanes stop, kept lanes run on from their own next offset, gained ones begin
at the group's commit.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

import structlog

from engine_workers.bounds import WorkerBounds
from engine_workers.inflight import LaneProgress
from engine_workers.jobs import Jobs
from infra.errors import CommitRefused, LogError
from infra.metrics import Metrics
from infra.ports import GroupReader, LogRecord, TopicPartition
from schemas import limits
from schemas.codec import Undecodable, decode
from schemas.requests import RequestAccepted

PAUSED_POLL_MS = 50
"""While full, look again this soon: room appears when a reply ends, which wakes no poll."""


class Lanes:
    """This worker's lanes of one pool's request topic."""

    def __init__(
        self,
        *,
        topic: str,
        group: GroupReader,
        jobs: Jobs,
        metrics: Metrics,
        bury: Callable[[LogRecord, str], Awaitable[bool]],
        bounds: WorkerBounds,
    ) -> None:
        self._topic = topic
        self._group = group
        self._jobs = jobs
        self._metrics = metrics
        self._bury = bury
        self._bounds = bounds
        self._epoch = 0
        self._assigned: frozenset[int] = frozenset()
        self._progress: dict[int, LaneProgress] = {}
        self._committed: dict[int, int] = {}
        self._paused: frozenset[int] = frozenset()
        self._sought: set[int] = set()
        """Lanes whose position was moved back in this turn."""
        self.commits_sent = 0
        self._log = structlog.get_logger("lanes")

    @property
    def assigned(self) -> tuple[int, ...]:
        """The lanes of the newest assignment that was acted on."""
        return tuple(sorted(self._assigned))

    def work(self) -> Mapping[TopicPartition, int]:
        """Return how many requests of each lane are unfinished; see `GroupReader.join`."""
        return {
            TopicPartition(self._topic, lane): progress.unfinished
            for lane, progress in self._progress.items()
        }

    def finish(self, lane: int, offsets: Collection[int]) -> None:
        """Note that these records need no more work; see `jobs.LaneBook`."""
        progress = self._progress.get(lane)
        if progress is not None:
            for offset in offsets:
                progress.finish(offset)

    async def run(self) -> None:
        """Take records for ever; an unreachable log is waited for."""
        while True:
            try:
                await self.run_once()
            except LogError as error:
                self._log.warning("lanes unreadable", error=str(error))
                await asyncio.sleep(limits.COMMIT_EVERY_MS / 1000)

    async def run_once(self) -> None:
        """One turn: poll, follow the assignment, take, pause. Raises LogError."""
        room = self._bounds.inflight - len(self._jobs)
        records = await self._group.poll(
            timeout_ms=limits.FETCH_WAIT_MS if room > 0 else PAUSED_POLL_MS,
            max_records=max(1, room),
        )
        self._follow_assignment()
        self._sought.clear()
        for record in records:
            await self._take(record)
        self._follow_assignment()
        self._set_pauses()

    async def commit_once(self) -> None:
        """Commit what has moved, and lanes whose doubt waits for proof; failures keep for later."""
        doubted = self._jobs.doubted_lanes()
        wanted = {
            lane: progress.commit_offset
            for lane, progress in self._progress.items()
            if lane in doubted or self._committed.get(lane) != progress.commit_offset
        }
        if not wanted:
            return
        self.commits_sent += 1
        number, epoch = self.commits_sent, self._group.assignment().epoch
        try:
            await self._group.commit(
                {TopicPartition(self._topic, lane): offset for lane, offset in wanted.items()}
            )
        except CommitRefused:
            self._metrics.count("lane_commits_refused")
            return
        except LogError as error:
            self._log.warning("commit failed", error=str(error))
            return
        self._metrics.count("lane_commits")
        self._committed.update(
            {lane: offset for lane, offset in wanted.items() if lane in self._progress}
        )
        if self._group.assignment().epoch == epoch == self._epoch:
            self._jobs.on_committed(wanted.keys() & self._assigned, number)

    async def commit_forever(self) -> None:
        """Tick the jobs and commit, four times a second."""
        while True:
            await asyncio.sleep(limits.COMMIT_EVERY_MS / 1000)
            self._jobs.tick()
            await self.commit_once()

    async def _take(self, record: LogRecord) -> None:
        lane = record.partition
        if record.topic != self._topic or lane not in self._assigned:
            return  # polled just before the lane went away
        if lane in self._sought:
            return  # polled from a position that was moved back since
        progress = self._progress.get(lane)
        if progress is None:
            progress = self._progress[lane] = LaneProgress(next_offset=record.offset)
        if not progress.admits(record.offset):
            if record.offset > progress.next_offset:
                self._group.seek(TopicPartition(self._topic, lane), progress.next_offset)
                self._sought.add(lane)
            return
        progress.take(record.offset)
        self._metrics.count("log_records_read", topic=self._topic)
        try:
            request = decode(record.value, RequestAccepted)
            if not 0 <= request.locator.partition < limits.REPLY_PARTITIONS:
                raise Undecodable(f"no reply partition {request.locator.partition}")
        except Undecodable as error:
            await self._bury(record, str(error))
            progress.finish(record.offset)
            return
        self._jobs.take(request, lane, record.offset, record.append_time_ms)

    def _follow_assignment(self) -> None:
        assignment = self._group.assignment()
        if assignment.epoch == self._epoch:
            return
        self._epoch = assignment.epoch
        now = frozenset(
            place.partition for place in assignment.partitions if place.topic == self._topic
        )
        for lane in self._assigned - now:
            self._jobs.drop_lane(lane)
            self._progress.pop(lane, None)
        # Another member may have had a kept lane for a moment and moved its commit back to what it
        # had finished itself: all are committed anew, or an idle lane would stay behind for ever.
        self._committed.clear()
        self._assigned = now
        for lane, progress in self._progress.items():
            # The rebalance moved the position to the commit, which another member may have moved
            # past our own next offset; what was polled from there is no gap of the log.
            progress.gap_before = None
            self._group.seek(TopicPartition(self._topic, lane), progress.next_offset)
        self._paused = frozenset()  # pauses are lost with the old assignment
        self._metrics.gauge("lanes_assigned", len(now))
        self._log.info("lanes assigned", lanes=sorted(now), epoch=self._epoch)

    def _set_pauses(self) -> None:
        if len(self._jobs) >= self._bounds.inflight:
            wanted = self._assigned
        else:
            wanted = frozenset(
                lane
                for lane, progress in self._progress.items()
                if progress.span >= self._bounds.lane_span
            )
        if wanted - self._paused:
            self._group.pause(self._places(wanted - self._paused))
        if self._paused - wanted:
            self._group.resume(self._places(self._paused - wanted))
        self._paused = wanted

    def _places(self, lanes: Collection[int]) -> list[TopicPartition]:
        return [TopicPartition(self._topic, lane) for lane in sorted(lanes)]
