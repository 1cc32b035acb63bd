"""The stream-app on a real broker: exact totals over kill -9, a broker restart, an orderly stop."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from infra.kafka import KafkaAdmin, KafkaReader, KafkaWriter, embedded
from infra.kafka.properties import Node
from infra.ports import TopicPartition
from infra.system import SystemEntropy
from schemas import limits
from schemas.codec import decode, encode
from schemas.operations import DeadLetter, ProcessReported
from schemas.topics import DEAD_LETTERS, FLEET_STATUS, USAGE, USAGE_TOTALS, topics, usage_partition
from schemas.usage import UsageRecorded, UsageTotals
from tests.unit.test_stream_app_exactness import usage_of_request

ORGS = [f"org-{n}" for n in range(6)]
CONVERGE_S = 40.0
RESTARTS_MAX = 5  # for records left out or a broker that is away; more is a loop
LOG_TAIL = 20_000  # characters of the processes' output to show where a test fails
Sums = dict[tuple[int, str], tuple[int, int, int]]


def test_totals_are_exact_over_kills() -> None:
    """After kills at random moments, one of them between processing and commit, with copies,
    poison and a record on a foreign partition, totals are those of the distinct requests."""
    asyncio.run(_kills())


def test_survives_a_killed_broker_and_stops_in_order() -> None:
    """A broker that dies and returns costs nothing but time; SIGTERM ends the process with 0."""
    asyncio.run(_broker_restart())


async def _kills() -> None:
    async with _platform() as platform:
        rng = Random(7)
        platform.start_app()
        await platform.produce(rng, 150)
        for _ in range(3):
            producing = asyncio.create_task(platform.produce(rng, 300))
            await asyncio.sleep(rng.uniform(0.5, 4.0))
            platform.kill_app()
            platform.start_app()
            await producing
        await platform.bury_and_misplace()
        await platform.converge()
        for _ in range(20):
            await platform.produce(rng, 60)
            await platform.converge()
            platform.kill_app()
            uncommitted = await platform.uncommitted()
            platform.start_app()
            if uncommitted:
                break
        assert uncommitted, "no kill hit the time between processing and commit"
        await platform.produce(rng, 60, copies_only=True)
        await platform.produce(rng, 60)
        await platform.converge()
        assert await platform.dead_letters() >= 1


async def _broker_restart() -> None:
    async with _platform() as platform:
        rng = Random(11)
        platform.start_app()
        await platform.produce(rng, 100)
        await platform.converge()
        producing = asyncio.create_task(platform.produce(rng, 300))
        await asyncio.sleep(0.3)
        platform.broker.kill()
        platform.broker.wait()
        await asyncio.sleep(1.0)
        await platform.start_broker()
        await producing
        await platform.converge()
        async with asyncio.timeout(CONVERGE_S):
            while await platform.uncommitted():
                platform.supervise()
                await asyncio.sleep(0.2)
        await platform.produce(rng, 60)
        await platform.converge()
        platform.app.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(platform.app.wait, 5) == 0
        assert not await platform.uncommitted()
        last = decode((await platform.read(FLEET_STATUS, 1))[-1], ProcessReported)
        assert (last.process, last.kind, last.left) == ("stream-app", "stream-app", True)


@dataclass(slots=True)
class Platform:
    """A broker with its topics, the stream-app's processes, and what the totals must become."""

    directory: Path
    port: int
    settings_path: Path
    install: embedded.KafkaInstall
    expected: Sums = field(default_factory=dict)
    sent: list[UsageRecorded] = field(default_factory=list)
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    restarts: int = 0
    broker: subprocess.Popen[bytes] = field(init=False)
    app: subprocess.Popen[bytes] = field(init=False)
    writer: KafkaWriter = field(init=False)

    @property
    def bootstrap(self) -> str:
        """Return the broker's address."""
        return f"127.0.0.1:{self.port}"

    async def start_broker(self) -> None:
        """Start the broker and wait until it answers."""
        self.broker = self._spawn(embedded.command(self.install, self.settings_path), {})
        await embedded.wait_ready(self.bootstrap, 30)

    def start_app(self) -> None:
        """Start the stream-app."""
        settings = {
            "MILLSTREAM_PROCESS": "stream-app",
            "MILLSTREAM_DATA_DIR": str(self.directory),
            "MILLSTREAM_KAFKA": self.bootstrap,
            "MILLSTREAM_SESSION_TIMEOUT_MS": "2000",  # what a start after a kill waits for
        }
        self.app = self._spawn([sys.executable, "-m", "streams.stream_app"], settings)

    def kill_app(self) -> None:
        """End the stream-app as kill -9 does."""
        self.app.kill()
        self.app.wait()

    def supervise(self) -> None:
        """Start the stream-app again where it has ended itself, to be delivered anew."""
        if self.app.poll() is not None:
            assert self.app.returncode == 1
            self.restarts += 1
            assert self.restarts <= RESTARTS_MAX
            self.start_app()

    async def produce(self, rng: Random, count: int, *, copies_only: bool = False) -> None:
        """Send usage of random orgs, every third a copy of an earlier one."""
        for _ in range(count):
            if self.sent and (copies_only or rng.random() < 0.33):
                usage = rng.choice(self.sent)
            else:
                usage = usage_of_request(
                    f"request-{len(self.sent)}", rng.choice(ORGS), rng.randint(1, 500)
                )
                self.sent.append(usage)
                self._expect(usage_partition(usage.org), usage)
            await self._send(usage_partition(usage.org), encode(usage))
            await asyncio.sleep(0.004)

    async def bury_and_misplace(self) -> None:
        """Send bytes that are no event, and a usage record to a partition not its org's own."""
        partition = (usage_partition("org-0") + 1) % limits.USAGE_PARTITIONS
        usage = usage_of_request("misplaced", "org-0", 3)
        self._expect(partition, usage)
        await self._send(partition, b"no event")
        await self._send(partition, encode(usage))

    async def converge(self) -> None:
        """Wait until the published totals are the expected ones."""
        found: Sums = {}

        def same() -> bool:
            return found == self.expected

        await self._follow(found, same)
        assert same(), {k: (found.get(k), v) for k, v in self.expected.items() if found.get(k) != v}

    async def uncommitted(self) -> bool:
        """Tell whether usage lies beyond the group's commits."""
        admin = KafkaAdmin(self.bootstrap)
        await admin.start()
        offsets = await admin.group_offsets("stream-app")
        await admin.close()
        reader = await self._reader()
        parts = [TopicPartition(USAGE, n) for n in range(limits.USAGE_PARTITIONS)]
        bounds = await reader.bounds(parts)
        await reader.close()
        return any(offsets.get(part, 0) < bounds[part].end for part in parts)

    async def dead_letters(self) -> int:
        """Return how many dead letters name our poison."""
        letters = [decode(value, DeadLetter) for value in await self.read(DEAD_LETTERS, 1)]
        return sum(letter.value == b"no event" for letter in letters)

    async def read(self, topic: str, partitions: int) -> list[bytes]:
        """Return all values of a topic."""
        reader = await self._reader()
        parts = [TopicPartition(topic, n) for n in range(partitions)]
        bounds = await reader.bounds(parts)
        reader.assign({part: bounds[part].start for part in parts})
        values: list[bytes] = []
        while any(reader.position(part) < bounds[part].end for part in parts):
            values += [r.value for r in await reader.poll(timeout_ms=200, max_records=500)]
        await reader.close()
        return values

    async def _follow(self, found: Sums, done: Callable[[], bool]) -> None:
        """Fold usage-totals.v1 as a reader should, highest next_offset per org and partition."""
        newest: dict[tuple[int, str], int] = {}
        reader = await self._reader()
        parts = [TopicPartition(USAGE_TOTALS, n) for n in range(limits.USAGE_PARTITIONS)]
        bounds = await reader.bounds(parts)
        reader.assign({part: bounds[part].start for part in parts})
        try:
            async with asyncio.timeout(CONVERGE_S):
                while not done():
                    self.supervise()
                    for record in await reader.poll(timeout_ms=200, max_records=500):
                        totals = decode(record.value, UsageTotals)
                        assert totals.partition == record.partition
                        key = (totals.partition, totals.org)
                        if totals.next_offset >= newest.get(key, 0):
                            newest[key] = totals.next_offset
                            found[key] = (
                                totals.requests,
                                totals.input_tokens,
                                totals.output_tokens,
                            )
        except TimeoutError:
            pass  # the caller tells what differs
        await reader.close()

    async def _reader(self) -> KafkaReader:
        reader = KafkaReader(self.bootstrap, client_id="test")
        await reader.start()
        return reader

    async def _send(self, partition: int, value: bytes) -> None:
        await self.writer.send(USAGE, partition, value, key=b"org")

    def _expect(self, partition: int, usage: UsageRecorded) -> None:
        count, given, made = self.expected.get((partition, usage.org), (0, 0, 0))
        self.expected[partition, usage.org] = (
            count + 1,
            given + usage.input_tokens,
            made + usage.output_tokens,
        )

    def _spawn(self, command: list[str], settings: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self.directory / "output.log").open("ab") as output:
            child = subprocess.Popen(
                command,
                env={**os.environ, **settings},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.children.append(child)
        return child


@asynccontextmanager
async def _platform() -> AsyncIterator[Platform]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        install = embedded.prepare(Path(sys.prefix) / "millstream", print)
        node = Node(node_id=1, host="127.0.0.1", port=_free_port(), controller_port=_free_port())
        cluster = embedded.cluster_id(directory / "cluster", SystemEntropy())
        settings_path = embedded.format_storage(
            install, node=node, nodes=[node], directory=directory / "kafka-1", cluster=cluster
        )
        platform = Platform(directory, node.port, settings_path, install)
        try:
            await platform.start_broker()
            await _make_topics(platform.bootstrap)
            platform.writer = KafkaWriter(platform.bootstrap, client_id="test")
            await platform.writer.start()
            try:
                yield platform
            finally:
                await platform.writer.close()
        except BaseException:
            print((directory / "output.log").read_text()[-LOG_TAIL:])
            raise
        finally:
            for child in platform.children:
                child.kill()
                child.wait()


async def _make_topics(bootstrap: str) -> None:
    admin = KafkaAdmin(bootstrap)
    await admin.start()
    for topic in topics("pool"):
        policy = "compact" if topic.compacted else "delete"
        await admin.create(topic.name, topic.partitions, {"cleanup.policy": policy})
    await admin.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
