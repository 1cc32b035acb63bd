"""A real Kafka broker for tests: the embedded one, or a container where the environment says so."""

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import aiokafka
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete

from infra.kafka import KafkaAdmin, KafkaGroupReader, KafkaReader, KafkaWriter, embedded
from infra.ports import GroupReader, LogAdmin, LogReader, LogWriter, TopicPartition
from infra.system import SystemEntropy
from schemas import limits

Started = TypeVar("Started", KafkaWriter, KafkaReader, KafkaGroupReader, KafkaAdmin)

READY_TIMEOUT_S = 60.0
CHOICE = "MILLSTREAM_TEST_KAFKA"
CONTAINER_IMAGE = "confluentinc/cp-kafka:7.9.0"


def default_cache() -> Path:
    """Return the folder that keeps Kafka's program between runs, as the product's default does."""
    return Path(sys.prefix) / "millstream"


class EmbeddedKafka:
    """One embedded broker as a child process of the test."""

    def __init__(self, directory: Path) -> None:
        self._install = embedded.prepare(default_cache(), print)
        port, controller_port = free_ports(2)
        self._node = embedded.Node(
            node_id=1, host="127.0.0.1", port=port, controller_port=controller_port
        )
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.bootstrap = f"127.0.0.1:{port}"

    @property
    def pid(self) -> int:
        """Return the process id of the running broker."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Format if needed, spawn, and wait until it answers."""
        self.spawn()
        asyncio.run(embedded.wait_ready(self.bootstrap, READY_TIMEOUT_S))

    def spawn(self) -> None:
        """Format if needed and spawn."""
        settings = embedded.format_storage(
            self._install,
            node=self._node,
            nodes=[self._node],
            directory=self._directory / "kafka-0",
            cluster=embedded.cluster_id(self._directory / "cluster-id", SystemEntropy()),
        )
        with (self._directory / "kafka-0.log").open("ab") as output:
            self._process = subprocess.Popen(
                embedded.command(self._install, settings),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop in good order."""
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(READY_TIMEOUT_S)
            self._process = None


@contextmanager
def running_kafka(directory: Path) -> Iterator[str]:
    """Run a broker of the kind that the environment asks for; yield its address."""
    if os.environ.get(CHOICE, "embedded") == "testcontainers":
        with _container() as bootstrap:
            yield bootstrap
        return
    broker = EmbeddedKafka(directory)
    broker.start()
    try:
        yield broker.bootstrap
    finally:
        broker.stop()


@contextmanager
def _container() -> Iterator[str]:
    from testcontainers.community.kafka import KafkaContainer

    container = KafkaContainer(CONTAINER_IMAGE).with_kraft()
    for name, value in {
        "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
        "KAFKA_LOG_MESSAGE_TIMESTAMP_TYPE": "LogAppendTime",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_MESSAGE_MAX_BYTES": str(limits.KAFKA_MESSAGE_BYTES_MAX),
    }.items():
        container.with_env(name, value)
    with container:
        yield container.get_bootstrap_server()


class KafkaHarness:
    """Implements `tests.contract.log_harness.LogHarness` on a running broker."""

    _numbers = itertools.count()
    _run = uuid.uuid4().hex[:8]

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._closers: list[Callable[[], Awaitable[None]]] = []

    async def writer(self) -> LogWriter:
        """Return a started writer."""
        writer = KafkaWriter(self._bootstrap, client_id="contract")
        return await self._started(writer, writer.close)

    async def reader(self) -> LogReader:
        """Return a started reader."""
        reader = KafkaReader(self._bootstrap, client_id="contract")
        return await self._started(reader, reader.close)

    async def group_reader(self, group: str, member: str) -> GroupReader:
        """Return a started group reader with quick heartbeats."""
        reader = KafkaGroupReader(
            self._bootstrap,
            group=group,
            client_id=member,
            session_timeout_ms=6_000,
            heartbeat_ms=100,
            rebalance_timeout_ms=3_000,
        )
        return await self._started(reader, reader.leave)

    async def admin(self) -> LogAdmin:
        """Return a started admin."""
        admin = KafkaAdmin(self._bootstrap)
        return await self._started(admin, admin.close)

    def unique(self, stem: str) -> str:
        """Return a name that no other test and no earlier run used."""
        return f"{stem}-{self._run}-{next(self._numbers)}"

    async def truncate(self, place: TopicPartition, start: int) -> None:
        """Drop the records below `start`."""
        client = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await client.start()
        try:
            where = aiokafka.TopicPartition(*place)
            await client.delete_records({where: RecordsToDelete(before_offset=start)})
        finally:
            await client.close()

    async def close(self) -> None:
        """Close all that was handed out, newest first."""
        while self._closers:
            await self._closers.pop()()

    async def _started(self, client: Started, close: Callable[[], Awaitable[None]]) -> Started:
        self._closers.append(close)
        await client.start()
        return client


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
