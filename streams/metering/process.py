"""The metering process around its sink: connections, health, fleet status, orderly stop.

Owns the order in which they start and end. Called by `streams/metering/__main__.py` alone.
"""

import asyncio
from contextlib import AsyncExitStack

import structlog

from infra.clickhouse import Address, ClickHouseUsageStore
from infra.config import Config
from infra.dead_letters import DeadLetters
from infra.fleet import FleetReporter
from infra.health import HealthServer
from infra.kafka import KafkaGroupReader, KafkaWriter
from infra.metrics import Metrics
from infra.ports import Clock, Entropy
from schemas.operations import ProcessReported, ProcessState
from streams.metering.sink import GROUP, MeteringDeps, MeteringSink

DRAIN_S = 15.0
_log = structlog.get_logger(__name__)


class Metering:
    """One metering process; `run` is its whole life."""

    def __init__(self, config: Config, clock: Clock, entropy: Entropy, stop: asyncio.Event) -> None:
        self._config, self._clock, self._stop = config, clock, stop
        self._incarnation = f"{config.process}/{entropy.uuid()}"
        self._metrics = Metrics()
        self._sink: MeteringSink | None = None

    async def run(self) -> None:
        """Connect (for as long as it takes), serve until the stop is asked for, drain, leave."""
        async with AsyncExitStack() as stack:
            await self._start_health(stack)
            connecting = asyncio.create_task(self._connect(stack))
            if not await self._unless_stopped(connecting):
                return
            sink, reporter = connecting.result()
            reporting = asyncio.create_task(reporter.run())
            stack.callback(reporting.cancel)
            serving = asyncio.create_task(sink.run())
            _log.info("metering", kafka=self._config.kafka, store=self._config.clickhouse_url)
            if await self._unless_stopped(serving):
                serving.result()  # it never ends by itself: raises what ended it
            reporting.cancel()
            # A turn that is under way may have inserted and not yet noted it: repeating is
            # harmless.
            await asyncio.gather(serving, reporting, return_exceptions=True)
            try:
                async with asyncio.timeout(DRAIN_S):
                    await sink.drain()
                    await reporter.say_goodbye()
            except TimeoutError:
                _log.warning("not drained in time; the rest comes again at the next start")
        _log.info("metering stopped")

    async def _start_health(self, stack: AsyncExitStack) -> None:
        if not self._config.health_port:
            return
        health = HealthServer(
            "127.0.0.1",
            self._config.health_port,
            self._metrics,
            ready=lambda: self._sink is not None and self._sink.is_ready,
            health=lambda: True,
        )
        await health.start()
        stack.push_async_callback(health.stop)

    async def _connect(self, stack: AsyncExitStack) -> tuple[MeteringSink, FleetReporter]:
        config, process = self._config, self._config.process
        store = ClickHouseUsageStore(
            Address(
                url=config.clickhouse_url,
                user=config.clickhouse_user,
                password=config.clickhouse_password,
                database=config.clickhouse_database,
            )
        )
        stack.push_async_callback(store.close)
        writer = KafkaWriter(config.kafka, client_id=process)
        await writer.start()
        stack.push_async_callback(writer.close)
        group = KafkaGroupReader(
            config.kafka,
            group=GROUP,
            client_id=process,
            session_timeout_ms=config.session_timeout_ms,
            heartbeat_ms=config.heartbeat_ms,
            rebalance_timeout_ms=config.rebalance_timeout_ms,
        )
        await group.start()
        self._sink = sink = MeteringSink(
            MeteringDeps(
                group=group,
                store=store,
                dead_letters=DeadLetters(writer, self._clock, process),
                clock=self._clock,
                metrics=self._metrics,
            )
        )
        await sink.join()
        return sink, FleetReporter(writer, self._report)

    def _report(self) -> ProcessReported:
        serving = self._sink is not None and self._sink.is_ready
        return ProcessReported(
            process=self._config.process,
            incarnation=self._incarnation,
            kind="metering",
            state=ProcessState.SERVING if serving else ProcessState.LOADING,
        )

    async def _unless_stopped(self, task: "asyncio.Task[object] | asyncio.Task[None]") -> bool:
        """Wait for a task or the stop; on the stop cancel the task. Tell whether the task ended."""
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if task.done():
            return True
        task.cancel()
        await asyncio.wait({task})
        return False
