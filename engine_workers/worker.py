"""One worker: wires tail, lanes, jobs, outbox and usage together and runs them (design section 5).

Runs on the side loop of a worker process, or on the simulator's one loop. The engine is reached
only through the pump's `submit` and `consumed`; its outputs come in by `deliver`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from engine_workers.bounds import WorkerBounds
from engine_workers.echoes import Echoes
from engine_workers.engine.port import EngineStats, StepOutput
from engine_workers.job import Job
from engine_workers.jobs import Jobs
from engine_workers.lanes import Lanes
from engine_workers.outbox import Outbox
from engine_workers.pump import Command, Rejection
from engine_workers.tail import ReplyTail
from engine_workers.usage_sender import UsageSender
from infra.errors import LogError
from infra.fleet import FleetReporter, FleetTail, FleetView
from infra.metrics import Metrics
from infra.ports import Clock, Entropy, GroupReader, LogReader, LogRecord, LogWriter
from schemas import limits
from schemas.codec import encode
from schemas.operations import ProcessReported, ProcessState
from schemas.topics import requests_topic

_DEFAULT_BOUNDS = WorkerBounds()
QUIET_MS = 300
"""A draining worker leaves after this long without work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDeps:
    """Everything a worker touches, made by the composition root."""

    process: str
    incarnation: str
    pool: str
    clock: Clock
    entropy: Entropy
    metrics: Metrics
    group: GroupReader
    tail_reader: LogReader
    fleet_reader: LogReader
    open_reader: Callable[[], Awaitable[LogReader]]
    reply_writer: LogWriter
    usage_writer: LogWriter
    status_writer: LogWriter
    bury: Callable[[LogRecord, str], Awaitable[bool]]
    submit: Callable[[Command], None]
    """Hands a command to the engine pump."""
    consumed: Callable[[], None]
    """Gives a step's credit back to the engine pump."""
    stats: Callable[[], EngineStats]
    bounds: WorkerBounds = _DEFAULT_BOUNDS


class Worker:
    """A worker of one pool, serving once `serve` runs."""

    def __init__(self, deps: WorkerDeps) -> None:
        self.deps = deps
        self.state = ProcessState.LOADING
        self._burials: set[asyncio.Task[None]] = set()
        self._fleet = FleetView()
        self._fleet_tail = FleetTail(deps.fleet_reader, self._fleet)
        self._reporter = FleetReporter(deps.status_writer, self.report)
        self.jobs = Jobs(
            incarnation=deps.incarnation,
            clock=deps.clock,
            entropy=deps.entropy,
            metrics=deps.metrics,
            fleet=self._fleet,
            submit=deps.submit,
            bury=self._bury_job,
        )
        echoes = Echoes()
        self._outbox = Outbox(deps.reply_writer, self.jobs.on_send_failed, echoes)
        self._usage = UsageSender(
            deps.usage_writer,
            self.jobs.metered,
            together=deps.bounds.usage_together,
            is_crowded=lambda: len(self.jobs) >= deps.bounds.inflight,
        )
        self._tail = ReplyTail(
            deps.tail_reader, deps.open_reader, self.jobs, echoes, ended_max=deps.bounds.ended_ids
        )
        self._lanes = Lanes(
            topic=requests_topic(deps.pool),
            group=deps.group,
            jobs=self.jobs,
            metrics=deps.metrics,
            bury=self._bury,
            bounds=deps.bounds,
        )
        self.jobs.connect(
            tail=self._tail, outbox=self._outbox, usage=self._usage, lanes=self._lanes
        )
        self._log = structlog.get_logger("worker")

    def report(self) -> ProcessReported:
        """Return what this worker says of itself on fleet-status."""
        stats = self.deps.stats()
        return ProcessReported(
            process=self.deps.process,
            incarnation=self.deps.incarnation,
            kind="worker",
            state=self.state,
            pool=self.deps.pool,
            lanes=self._lanes.assigned,
            member_id=self.deps.group.member_id(),
            running=stats.running,
            waiting=stats.waiting,
            kv_usage=stats.kv_usage,
        )

    async def report_forever(self) -> None:
        """Report once a second, also while the engine loads."""
        await self._reporter.run()

    async def serve(self) -> None:
        """Tail, join, then work until cancelled. Call once the engine is warm.

        The first task that fails ends it with that task's error.
        """
        await self._tail.start()  # before joining: nothing of our lanes may slip past the tail
        await self.deps.group.join([requests_topic(self.deps.pool)], work=self._lanes.work)
        self.state = ProcessState.SERVING
        await self._reporter.run_once()  # at once: who sees us ready expects gateways to know it
        async with asyncio.TaskGroup() as group:
            group.create_task(self._fleet_tail.run(), name="fleet")
            group.create_task(self._tail.run(), name="tail")
            group.create_task(self._outbox.run(), name="outbox")
            group.create_task(self._usage.run(), name="usage")
            group.create_task(self._lanes.run(), name="lanes")
            group.create_task(self._lanes.commit_forever(), name="commits")

    def deliver(self, outputs: Sequence[StepOutput], rejected: Sequence[Rejection]) -> None:
        """Take one engine step's outputs; the credit goes back once they are with the writer."""
        self.deps.metrics.count("engine_steps")
        self.jobs.on_outputs(outputs, rejected)
        self._outbox.when_sent(self.deps.consumed)

    async def drain(self, timeout_s: float) -> None:
        """Announce it, serve what is here and still arrives, then return (design rule 6.10)."""
        self.state = ProcessState.DRAINING
        await self._reporter.run_once()
        deadline_s = self.deps.clock.monotonic_s() + timeout_s
        quiet_since_s = self.deps.clock.monotonic_s()
        while self.deps.clock.monotonic_s() < deadline_s:
            if len(self.jobs):
                quiet_since_s = self.deps.clock.monotonic_s()
            elif self.deps.clock.monotonic_s() - quiet_since_s > QUIET_MS / 1000:
                return
            await asyncio.sleep(QUIET_MS / 1000 / 10)

    async def leave(self) -> None:
        """Commit what is finished, leave the group, say goodbye; after `serve` was cancelled."""
        await self._lanes.commit_once()
        await self.deps.group.leave()
        await self._tail.close()
        for task in self._burials:
            task.cancel()
        await self._reporter.say_goodbye()

    def _bury_job(self, job: Job, reason: str, then: Callable[[Job], None]) -> None:
        """Dead-letter a job's request in the background, then go on with it."""
        record = LogRecord(
            topic=requests_topic(self.deps.pool),
            partition=job.lane,
            offset=job.offsets[0],
            append_time_ms=job.append_time_ms,
            key=None,
            value=encode(job.request),
        )
        task = asyncio.get_running_loop().create_task(self._bury_then(job, record, reason, then))
        self._burials.add(task)
        task.add_done_callback(self._burials.discard)

    async def _bury_then(
        self, job: Job, record: LogRecord, reason: str, then: Callable[[Job], None]
    ) -> None:
        await self._bury(record, reason)
        then(job)

    async def _bury(self, record: LogRecord, reason: str) -> bool:
        """Bury a record; an unreachable log is waited for, since the offset must not be lost."""
        self._log.warning(
            "record buried", lane=record.partition, offset=record.offset, reason=reason
        )
        while True:
            try:
                return await self.deps.bury(record, reason)
            except LogError as error:
                self._log.warning("dead letter not sent", error=str(error))
                await asyncio.sleep(limits.COMMIT_EVERY_MS / 1000)
