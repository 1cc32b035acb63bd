"""The side thread of a worker process: its event loop, Kafka, health and orderly stop.

Belongs to the composition root `engine_workers.__main__`, which owns the main thread with the
engine. What crosses between the threads: `deliver_threadsafe`, `engine_is_warm`, `request_stop`,
`fail` (into the loop) and the pump's own thread-safe methods (out of it).
"""

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import structlog

from engine_workers.bounds import WorkerBounds
from engine_workers.engine.port import EngineStats, StepOutput
from engine_workers.pump import Command, EnginePump, Rejection
from engine_workers.worker import Worker, WorkerDeps
from infra import membership
from infra.config import Config
from infra.dead_letters import DeadLetters
from infra.health import HealthServer
from infra.kafka import KafkaGroupReader, KafkaReader, KafkaWriter
from infra.metrics import Metrics
from infra.ports import Clock, LogReader
from infra.system import SystemEntropy
from schemas import limits
from schemas.operations import ProcessState
from schemas.topics import workers_group

_IDLE = EngineStats(
    running=0, waiting=0, kv_usage=0.0, prefix_cache_hit_tokens=0, prefix_cache_query_tokens=0
)


class Side:
    """One worker's side thread; `run` is its whole life."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._member_path = membership.path_of(config.data_dir, config.process)
        self._pump: EnginePump | None = None
        self._stats: Callable[[], EngineStats] = lambda: _IDLE
        self._metrics = Metrics()
        self._log = structlog.get_logger("worker")
        self.started = threading.Event()
        """Set once the other methods may be called."""
        self.exit_status = 0

    # --- called from the main thread

    def deliver_threadsafe(
        self, outputs: Sequence[StepOutput], rejected: Sequence[Rejection]
    ) -> None:
        """Hand one step's outputs to the worker's loop.

        What a step in progress makes after the worker left is nobody's: others go on from the log.
        """
        try:
            self._loop.call_soon_threadsafe(self._deliver, outputs, rejected)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def engine_is_warm(self, pump: EnginePump, stats: Callable[[], EngineStats]) -> None:
        """Say that the engine can serve; the worker joins its group now."""
        self._pump, self._stats = pump, stats
        self._loop.call_soon_threadsafe(self._warm.set)

    def request_stop(self) -> None:
        """Drain, leave and stop; safe to repeat and in signal handlers."""
        self._loop.call_soon_threadsafe(self._stop.set)

    def fail(self) -> None:
        """Stop without draining: the engine is gone."""
        self.exit_status = 1
        self._loop.call_soon_threadsafe(self._failed.set)
        self.request_stop()

    # --- the side loop

    async def run(self) -> None:
        """Connect, wait for the engine, serve, drain, leave."""
        self._loop = asyncio.get_running_loop()
        self._warm, self._stop, self._failed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.started.set()
        try:
            async with AsyncExitStack() as stack:
                await self._run(stack)
        except Exception:
            self._log.exception("worker failed")
            self.exit_status = 1
        finally:
            if self._pump is not None:
                self._pump.stop()
            elif not self._failed.is_set():
                # The main thread is deep in loading a model; nothing is lost by ending here.
                os._exit(self.exit_status)

    async def _run(self, stack: AsyncExitStack) -> None:
        health = HealthServer(
            "127.0.0.1",
            self._config.health_port,
            self._metrics,
            ready=lambda: self._worker_state() is ProcessState.SERVING,
            health=lambda: self._pump is None or self._stalled_ms() < limits.ENGINE_STALL_MS,
            measure=self._measure,
        )
        if self._config.health_port:
            await health.start()
            stack.push_async_callback(health.stop)
        connecting = asyncio.create_task(self._connect(stack))
        if not await self._unless_stopped(connecting):
            return
        self._worker = worker = connecting.result()
        reporting = asyncio.create_task(worker.report_forever())
        stack.callback(reporting.cancel)
        if not await self._unless_stopped(asyncio.create_task(self._warm.wait())):
            return
        serving = asyncio.create_task(worker.serve())
        watching = asyncio.create_task(self._watch_for_stalls())
        stack.callback(watching.cancel)
        self._log.info("serving", pool=self._config.pool)
        await self._unless_stopped(serving)
        if serving.done():
            serving.result()  # raises what ended it
        if not self._failed.is_set():
            await worker.drain(self._config.worker_drain_ms / 1000)
        serving.cancel()
        reporting.cancel()
        await asyncio.gather(serving, reporting, return_exceptions=True)
        await worker.leave()
        membership.forget(self._member_path)

    async def _unless_stopped(self, task: "asyncio.Task[object] | asyncio.Task[None]") -> bool:
        """Wait for a task or the stop, whichever comes first; tell whether it was the task."""
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        return task.done()

    async def _connect(self, stack: AsyncExitStack) -> Worker:
        """Make all adapters; each waits for Kafka to be there."""
        config, process = self._config, self._config.process
        entropy = SystemEntropy()
        incarnation = f"{process}/{entropy.uuid()}"

        async def writer(what: str) -> KafkaWriter:
            made = KafkaWriter(config.kafka, client_id=f"{process}-{what}")
            await made.start()
            stack.push_async_callback(made.close)
            return made

        async def reader(what: str) -> KafkaReader:
            made = KafkaReader(config.kafka, client_id=f"{process}-{what}")
            await made.start()
            return made

        async def owned_reader(what: str) -> KafkaReader:
            made = await reader(what)
            stack.push_async_callback(made.close)
            return made

        async def open_reader() -> LogReader:
            return await reader("scan")

        group = KafkaGroupReader(
            config.kafka,
            group=workers_group(config.pool),
            client_id=process,
            session_timeout_ms=config.session_timeout_ms,
            heartbeat_ms=config.worker_heartbeat_ms,
            rebalance_timeout_ms=config.rebalance_timeout_ms,
            on_joined=self._note_membership,
        )
        await group.start()
        status_writer = await writer("status")
        return Worker(
            WorkerDeps(
                process=process,
                incarnation=incarnation,
                pool=config.pool,
                clock=self._clock,
                entropy=entropy,
                metrics=self._metrics,
                group=group,
                tail_reader=await owned_reader("tail"),
                fleet_reader=await owned_reader("fleet"),
                open_reader=open_reader,
                reply_writer=await writer("replies"),
                usage_writer=await writer("usage"),
                status_writer=status_writer,
                bury=DeadLetters(status_writer, self._clock, process).bury,
                submit=self._submit,
                consumed=self._consumed,
                stats=lambda: self._stats(),
                bounds=WorkerBounds(inflight=config.worker_inflight_max),
            )
        )

    async def _watch_for_stalls(self) -> None:
        """Exit where the engine makes no step while work waits (design rule 6.3)."""
        while True:
            await asyncio.sleep(1)
            if self._stalled_ms() > limits.ENGINE_STALL_MS:
                self._metrics.count("engine_stalls")
                self._log.error("the engine makes no step; exiting", stalled_ms=self._stalled_ms())
                os._exit(1)  # the main thread hangs in the engine: nothing softer ends it

    def _note_membership(self, member_id: str) -> None:
        """Leave word of who we are in the group, for when we cannot leave it ourselves."""
        group = workers_group(self._config.pool)
        membership.note(self._member_path, membership.Membership(group=group, member_id=member_id))

    def _deliver(self, outputs: Sequence[StepOutput], rejected: Sequence[Rejection]) -> None:
        self._worker.deliver(outputs, rejected)

    def _submit(self, command: Command) -> None:
        assert self._pump is not None, "commands come only while serving"
        self._pump.submit(command)

    def _consumed(self) -> None:
        assert self._pump is not None, "credits come only while serving"
        self._pump.consumed()

    def _measure(self) -> None:
        """Set the engine's gauges as they are now."""
        stats = self._stats()
        self._metrics.gauge("engine_running", stats.running)
        self._metrics.gauge("engine_waiting", stats.waiting)
        self._metrics.gauge("engine_kv_usage_ratio", stats.kv_usage)

    def _stalled_ms(self) -> int:
        return self._pump.stalled_ms() if self._pump is not None else 0

    def _worker_state(self) -> ProcessState:
        worker: Worker | None = getattr(self, "_worker", None)
        return worker.state if worker is not None else ProcessState.LOADING
