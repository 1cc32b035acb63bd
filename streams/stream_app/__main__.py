"""Composition root of the stream-app: `python -m streams.stream_app`."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from infra import logs
from infra.config import Config, load
from infra.dead_letters import DeadLetters
from infra.errors import ConfigError, LogUnavailable
from infra.fleet import FleetReporter
from infra.health import HealthServer
from infra.kafka import KafkaAdmin, KafkaReader, KafkaWriter
from infra.metrics import Metrics
from infra.system import SystemClock, SystemEntropy
from schemas.operations import ProcessReported, ProcessState
from schemas.topics import Role, topics
from streams.stream_app.agent import AgentDeps
from streams.stream_app.app import AppSettings, StreamApp
from streams.stream_app.confirmations import Confirmations
from streams.stream_app.expiry import SeenExpiry
from streams.stream_app.publisher import TotalsPublisher
from streams.stream_app.quota import QuotaService
from streams.stream_app.starts import delivery_ends, delivery_starts

KAFKA_RETRY_S = 0.5
STOP_WITHIN_S = 4.0

_logger = structlog.get_logger()


@dataclass(slots=True)
class Stage:
    """How far this process is; what /ready and fleet-status tell."""

    state: ProcessState = ProcessState.LOADING


def main() -> int:
    """Run the stream-app until SIGTERM or SIGINT; return its exit status."""
    try:
        config = load(os.environ)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    logs.configure(config)
    return asyncio.run(_run(config))


async def _run(config: Config) -> int:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    metrics, stage = Metrics(), Stage()
    health = HealthServer(
        config.host,
        config.health_port,
        metrics,
        ready=lambda: stage.state is ProcessState.SERVING,
        health=lambda: True,
    )
    if config.health_port:
        await health.start()
    serving = asyncio.create_task(_serve(config, metrics, stage))
    asked = asyncio.create_task(stopping.wait())
    await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    serving.cancel()
    [outcome] = await asyncio.gather(serving, return_exceptions=True)
    await health.stop()
    if isinstance(outcome, asyncio.CancelledError) or outcome is None:
        return 0
    _logger.error("stopped on failure", reason=_reasons(outcome))
    return 1


async def _serve(config: Config, metrics: Metrics, stage: Stage) -> None:
    """Work until cancelled; drain within STOP_WITHIN_S. Raises what ended it."""
    writer = KafkaWriter(config.kafka, client_id=config.process)
    admin = KafkaAdmin(config.kafka)
    reader = KafkaReader(config.kafka, client_id=config.process)
    demands = KafkaReader(config.kafka, client_id=f"{config.process}-quota")
    grants = KafkaWriter(config.kafka, client_id=f"{config.process}-quota")
    connections = (writer, reader, demands, grants)
    await _wait_for_kafka(config, admin)
    for connection in connections:
        await connection.start()
    clock = SystemClock()
    publisher = TotalsPublisher(writer)
    dead_letters = DeadLetters(writer, clock, config.process)
    deps = AgentDeps(
        confirmations=Confirmations(),
        expiry=SeenExpiry(),
        publisher=publisher,
        dead_letters=dead_letters,
        metrics=metrics,
    )
    app = StreamApp(
        _app_settings(config),
        deps,
        starts=lambda: delivery_starts(admin, reader),
        ends=lambda: delivery_ends(reader),
    )
    incarnation = f"{config.process}/{SystemEntropy().uuid()}"
    fleet = FleetReporter(writer, lambda: _report(config, incarnation, stage))
    quota = QuotaService(
        reader=demands,
        writer=grants,
        service=incarnation,
        dead_letters=dead_letters,
        metrics=metrics,
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(app.run())
            tasks.create_task(publisher.run())
            tasks.create_task(fleet.run())
            tasks.create_task(quota.run())
            tasks.create_task(_note_recovery(app, stage))
    finally:
        stage.state = ProcessState.DRAINING
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await app.stop()
                await publisher.run_once()
                await fleet.say_goodbye()
                for connection in connections:
                    await connection.close()
                await admin.close()
        except TimeoutError:
            _logger.warning("drain took too long; what is left is done at the next start")


async def _wait_for_kafka(config: Config, admin: KafkaAdmin) -> None:
    """Return once Kafka answers and `apply` has made our topics; both are waited for."""
    needed = {
        topic.name: topic.partitions
        for topic in topics(config.pool)
        if Role.STREAM_APP in topic.readers | topic.writers
    }
    said = ""
    await admin.start()
    while problem := await _missing(admin, needed):
        if problem != said:
            _logger.warning("waiting for topics", problem=problem)
            said = problem
        await asyncio.sleep(KAFKA_RETRY_S)


async def _missing(admin: KafkaAdmin, needed: Mapping[str, int]) -> str:
    """Return what keeps us from starting, or nothing."""
    try:
        found = await admin.topics()
    except LogUnavailable as error:
        return str(error)
    wrong = sorted(name for name, count in needed.items() if found.get(name) != count)
    return f"not made as declared (millstream apply): {', '.join(wrong)}" if wrong else ""


async def _note_recovery(app: StreamApp, stage: Stage) -> None:
    await app.recovered.wait()
    stage.state = ProcessState.SERVING
    _logger.info("serving")


def _report(config: Config, incarnation: str, stage: Stage) -> ProcessReported:
    return ProcessReported(
        process=config.process, incarnation=incarnation, kind="stream-app", state=stage.state
    )


def _app_settings(config: Config) -> AppSettings:
    return AppSettings(
        kafka=config.kafka,
        client_id=config.process,
        session_timeout_ms=config.session_timeout_ms,
        heartbeat_ms=config.heartbeat_ms,
        rebalance_timeout_ms=config.rebalance_timeout_ms,
    )


def _reasons(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [reason for each in error.exceptions for reason in _reasons(each)]
    return [repr(error)]


if __name__ == "__main__":
    sys.exit(main())
