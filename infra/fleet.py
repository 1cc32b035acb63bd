"""Who lives: the once-a-second reports on `fleet-status.v1`, written and read.

Owns the reporter that every process runs and the view that gateways and workers read. Decides
nothing: routing stands in gateway/, closing for lost gateways in engine_workers/. Times are
append times, never clocks of others.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from infra.errors import LogError
from infra.ports import Bounds, LogReader, LogRecord, LogWriter, TopicPartition
from schemas import limits
from schemas.codec import Undecodable, decode, encode
from schemas.operations import ProcessReported, ProcessState
from schemas.topics import FLEET_STATUS

_PARTITION = TopicPartition(FLEET_STATUS, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """The newest report of one incarnation and the broker's time for it."""

    report: ProcessReported
    append_time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A time in which nobody's report was appended: the log was away, not all of them."""

    began_ms: int
    ended_ms: int

    def excuse(self, last_ms: int) -> int:
        """Return what counts as the last time that somebody was heard of.

        Who lived when it began has had no chance to report until it ended, nor at once then:
        clients come back to a log one after the other.
        """
        lived = self.began_ms - limits.STATUS_LOST_MS <= last_ms < self.ended_ms
        return self.ended_ms + limits.STATUS_LOST_MS if lived else last_ms


_NO_SILENCE = Silence(began_ms=0, ended_ms=0)


@dataclass(slots=True)
class FleetView:
    """State folded from the status topic: the newest report of each incarnation."""

    sightings: dict[str, Sighting] = field(default_factory=dict)
    newest_ms: int = 0
    """Append time of the newest report of anyone: the only clock that this view knows."""
    silence: Silence = _NO_SILENCE
    """The newest one."""
    _told_to_stop: dict[str, int] = field(default_factory=dict)
    """Append time of the newest report of each incarnation that drains or has left."""

    _live: dict[tuple[str, str | None], tuple[ProcessReported, ...]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """What `live` has answered since the newest report."""

    def apply(self, report: ProcessReported, append_time_ms: int) -> None:
        """Take one report in log order; forget those silent for the topic's retention."""
        self._live.clear()
        if self.newest_ms and append_time_ms - self.newest_ms > limits.STATUS_SILENCE_MS:
            self.silence = Silence(began_ms=self.newest_ms, ended_ms=append_time_ms)
        self.newest_ms = max(self.newest_ms, append_time_ms)
        horizon_ms = self.newest_ms - limits.FLEET_STATUS_RETENTION_MS
        if report.left or report.state is ProcessState.DRAINING:
            self._told_to_stop[report.incarnation] = append_time_ms
            for name in [name for name, at_ms in self._told_to_stop.items() if at_ms < horizon_ms]:
                del self._told_to_stop[name]
        if report.left:
            self.sightings.pop(report.incarnation, None)
            return
        self.sightings[report.incarnation] = Sighting(report=report, append_time_ms=append_time_ms)
        for incarnation in [
            name for name, seen in self.sightings.items() if seen.append_time_ms < horizon_ms
        ]:
            del self.sightings[incarnation]

    def live(self, kind: str, pool: str | None = None) -> tuple[ProcessReported, ...]:
        """Return the newest reports of those heard of within the last `STATUS_LOST_MS`.

        It is the same tuple until somebody reports: every request asks.
        """
        if (kind, pool) not in self._live:
            self._live[kind, pool] = self._look(kind, pool)
        return self._live[kind, pool]

    def _look(self, kind: str, pool: str | None) -> tuple[ProcessReported, ...]:
        oldest_ms = self.newest_ms - limits.STATUS_LOST_MS
        return tuple(
            seen.report
            for seen in self.sightings.values()
            if self.silence.excuse(seen.append_time_ms) >= oldest_ms
            and seen.report.kind == kind
            and (pool is None or seen.report.pool == pool)
        )

    def serving(self, pool: str) -> tuple[ProcessReported, ...]:
        """Return the live workers of a pool that take requests now."""
        return tuple(
            report for report in self.live("worker", pool) if report.state is ProcessState.SERVING
        )

    def was_told_to_stop(self, incarnation: str) -> bool:
        """Tell whether a process was heard to drain or leave: no work of its own ended it."""
        return incarnation in self._told_to_stop

    def is_lost(self, incarnation: str, since_ms: int) -> bool:
        """Tell whether a process is gone (design rule 6.6).

        Its newest report, or `since_ms` (when something of it was last seen elsewhere) where it
        never reported, is more than `STATUS_LOST_MS` older than the newest report of anyone;
        a time in which nobody could report does not count.
        """
        seen = self.sightings.get(incarnation)
        last_ms = max(seen.append_time_ms, since_ms) if seen else since_ms
        return self.newest_ms - self.silence.excuse(last_ms) > limits.STATUS_LOST_MS


class FleetReporter:
    """Appends this process's report once a second until stopped."""

    def __init__(self, writer: LogWriter, report: Callable[[], ProcessReported]) -> None:
        self._writer = writer
        self._report = report

    async def run(self) -> None:
        """Report for ever; a report that fails is simply the next one's business."""
        while True:
            await self.run_once()
            await asyncio.sleep(limits.STATUS_EVERY_MS / 1000)

    async def run_once(self) -> None:
        """Append one report."""
        report = self._report()
        try:
            await self._writer.send(FLEET_STATUS, 0, encode(report), key=report.process.encode())
        except LogError:
            pass  # the next report says all that this one said

    async def say_goodbye(self) -> None:
        """Append the last report of an orderly stop, so that nobody waits for the next one."""
        last = self._report()
        farewell = ProcessReported(
            process=last.process,
            incarnation=last.incarnation,
            kind=last.kind,
            state=ProcessState.DRAINING,
            pool=last.pool,
            left=True,
        )
        try:
            await self._writer.send(
                FLEET_STATUS, 0, encode(farewell), key=farewell.process.encode()
            )
        except LogError:
            pass  # they notice within STATUS_LOST_MS


class FleetTail:
    """Keeps a FleetView up to date from a reader of its own."""

    def __init__(self, reader: LogReader, view: FleetView) -> None:
        self._reader = reader
        self._view = view
        self._assigned = False

    async def run(self) -> None:
        """Read for ever; an unreachable log is waited for."""
        while True:
            try:
                await self.run_once(timeout_ms=limits.STATUS_LOST_MS)
            except LogError:
                self._assigned = False
                await asyncio.sleep(limits.STATUS_EVERY_MS / 1000)

    async def run_once(self, *, timeout_ms: int) -> None:
        """Take what has come since the last turn. Raises LogError; the next turn starts anew."""
        if not self._assigned:
            bounds: Mapping[TopicPartition, Bounds] = await self._reader.bounds([_PARTITION])
            # A few seconds of history: 64 processes report once a second.
            start = max(bounds[_PARTITION].start, bounds[_PARTITION].end - 512)
            self._reader.assign({_PARTITION: start})
            self._assigned = True
        records = await self._reader.poll(
            timeout_ms=timeout_ms, max_records=limits.POLL_RECORDS_MAX
        )
        for record in records:
            self._take(record)

    def _take(self, record: LogRecord) -> None:
        try:
            report = decode(record.value, ProcessReported)
        except Undecodable:
            return  # status is advice; a bad report is nobody's request
        self._view.apply(report, record.append_time_ms)
