"""The embedded broker: starts, restarts, kill -9 under load, data that is not its own."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.apply import apply, look
from infra.errors import LogUnavailable, SendUnknown, StartupError
from infra.kafka import KafkaAdmin, KafkaGroupReader, KafkaReader, KafkaWriter, embedded, jars
from infra.ports import Appended, LogRecord, TopicPartition
from infra.system import SystemEntropy
from schemas.topics import topics
from tests.contract.kafka_harness import EmbeddedKafka, default_cache

PLACES = tuple(TopicPartition("load", index) for index in range(4))
RECOVERED_WITHIN_S = 30.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    """Yield a running broker on a folder of its own."""
    broker = EmbeddedKafka(tmp_path)
    broker.start()
    yield broker
    broker.stop()


class Load:
    """Sends numbered records round robin, many in flight, and remembers how each send ended."""

    def __init__(self, writer: KafkaWriter) -> None:
        self._writer = writer
        self.acknowledged: dict[bytes, tuple[TopicPartition, Appended]] = {}
        self.unknown: set[bytes] = set()
        self.sent = 0

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await asyncio.gather(*(self._one() for _ in range(16)))

    async def _one(self) -> None:
        value, place = b"%d" % self.sent, PLACES[self.sent % len(PLACES)]
        self.sent += 1
        try:
            self.acknowledged[value] = (place, await self._writer.send(*place, value))
        except SendUnknown:
            self.unknown.add(value)


def test_killed_under_load_it_loses_and_doubles_nothing(broker: EmbeddedKafka) -> None:
    """After kill -9 and a restart every acknowledged record is there once, where it was said."""
    asyncio.run(_killed_under_load(broker))


async def _killed_under_load(broker: EmbeddedKafka) -> None:
    admin = KafkaAdmin(broker.bootstrap)
    writer = KafkaWriter(broker.bootstrap, client_id="load")
    tail = KafkaReader(broker.bootstrap, client_id="tail")
    await admin.start()
    await admin.create("load", len(PLACES), {})
    await writer.start()
    await tail.start()
    tail.assign(dict.fromkeys(PLACES, 0))
    load, seen = Load(writer), list[LogRecord]()
    sending = asyncio.create_task(load.run())
    try:
        seen += await _read_until(tail, 2_000)
        broker.kill()
        before = len(load.acknowledged)
        broker.spawn()
        await _until(lambda: len(load.acknowledged) > before + 1_000)
    finally:
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending
        await writer.close()
    bounds = await tail.bounds(PLACES)
    seen += await _read_until(tail, sum(bound.end for bound in bounds.values()) - len(seen))
    await tail.close()
    await admin.close()
    _check(load, seen)


def _check(load: Load, seen: list[LogRecord]) -> None:
    where = {(record.topic, record.partition, record.offset): record for record in seen}
    assert len(where) == len(seen), "one reader never reads an offset twice"
    for value, (place, appended) in load.acknowledged.items():
        assert where[(*place, appended.offset)].value == value
    counts = Counter(record.value for record in seen)
    assert [value for value, count in counts.items() if count > 1] == []
    assert load.acknowledged.keys() <= counts.keys()


def test_a_group_member_outlives_the_broker(broker: EmbeddedKafka) -> None:
    """A group member reads and commits again after its broker was killed and restarted."""
    asyncio.run(_member_outlives(broker))


async def _member_outlives(broker: EmbeddedKafka) -> None:
    admin = KafkaAdmin(broker.bootstrap)
    writer = KafkaWriter(broker.bootstrap, client_id="writer")
    member = KafkaGroupReader(
        broker.bootstrap,
        group="group",
        client_id="member",
        session_timeout_ms=6_000,
        heartbeat_ms=200,
        rebalance_timeout_ms=3_000,
    )
    for client in (admin, writer, member):
        await client.start()
    place = PLACES[0]
    await admin.create(place.topic, 1, {})
    await writer.send(*place, b"before")
    await member.join([place.topic])
    assert [record.value for record in await _read_until(member, 1)] == [b"before"]
    await member.commit({place: 1})
    broker.kill()
    broker.spawn()
    acknowledged = asyncio.create_task(writer.send(*place, b"after"))
    records = await _read_until(member, 1)
    assert records[-1].value == b"after"
    assert (await acknowledged).offset == 1
    await _commit_again(member, {place: 2})
    assert await admin.group_offsets("group") == {place: 2}
    await member.leave()
    await writer.close()
    await admin.close()


def test_sends_fail_in_time_while_it_is_down(broker: EmbeddedKafka) -> None:
    """While no broker answers sends end as unknown in time; the writer recovers, or closes."""
    asyncio.run(_sends_fail(broker))


async def _sends_fail(broker: EmbeddedKafka) -> None:
    writer = KafkaWriter(broker.bootstrap, client_id="writer", send_timeout_ms=2_000)
    admin = KafkaAdmin(broker.bootstrap)
    await writer.start()
    await admin.start()
    await admin.create("load", 1, {})
    await writer.send(*PLACES[0], b"up")
    broker.kill()
    started_s = time.monotonic()
    flying = [await writer.enqueue(*PLACES[0], b"down") for _ in range(3)]
    for future in flying:
        with pytest.raises(SendUnknown):
            await future
    assert time.monotonic() - started_s < 5
    broker.spawn()
    await _send_again(writer)
    broker.kill()
    flying = [await writer.enqueue(*PLACES[0], b"down")]
    closing_s = time.monotonic()
    await writer.close()
    await admin.close()
    assert time.monotonic() - closing_s < 5
    with pytest.raises(SendUnknown):
        flying[0].result()
    with pytest.raises(LogUnavailable):
        await embedded.wait_ready(broker.bootstrap, 0.3)


def test_clients_wait_for_a_broker_that_comes_later(tmp_path: Path) -> None:
    """Clients started before the broker connect once it is there."""
    broker = EmbeddedKafka(tmp_path)

    async def connect() -> None:
        reader = KafkaReader(broker.bootstrap, client_id="early")
        starting = asyncio.create_task(reader.start())
        await asyncio.sleep(0.3)
        assert not starting.done()
        await asyncio.to_thread(broker.spawn)
        await asyncio.wait_for(starting, RECOVERED_WITHIN_S)
        await reader.close()

    try:
        asyncio.run(connect())
    finally:
        broker.stop()


def test_apply_makes_every_topic_once(broker: EmbeddedKafka) -> None:
    """Applied to a real broker the plan holds: a second look finds nothing to do."""
    asyncio.run(_apply(broker.bootstrap))


async def _apply(bootstrap: str) -> None:
    admin = KafkaAdmin(bootstrap)
    reader = KafkaReader(bootstrap, client_id="apply")
    writer = KafkaWriter(bootstrap, client_id="apply")
    for client in (admin, reader, writer):
        await client.start()
    wanted = topics("pool")
    await apply(await look(wanted, admin, reader), admin, writer, SystemEntropy())
    assert await look(wanted, admin, reader) == []
    await writer.close()
    await reader.close()
    await admin.close()


def test_data_of_another_owner_is_refused_by_name(tmp_path: Path) -> None:
    """A folder formatted for another version, cluster or node is refused and left alone."""
    install = embedded.prepare(default_cache(), print)
    node = embedded.Node(node_id=1, host="127.0.0.1", port=1, controller_port=2)
    other = embedded.Node(node_id=2, host="127.0.0.1", port=1, controller_port=2)
    cluster = embedded.cluster_id(tmp_path / "id", SystemEntropy())
    assert embedded.cluster_id(tmp_path / "id", SystemEntropy()) == cluster

    def make(mine: embedded.Node, cluster: str) -> None:
        folder = tmp_path / "kafka"
        embedded.format_storage(install, node=mine, nodes=[mine], directory=folder, cluster=cluster)

    make(node, cluster)
    make(node, cluster)
    with pytest.raises(StartupError, match=r"has cluster\.id"):
        make(node, embedded.cluster_id(tmp_path / "another", SystemEntropy()))
    with pytest.raises(StartupError, match=r"has node\.id 1, expected 2"):
        make(other, cluster)
    (tmp_path / "kafka" / "kafka-version").write_text("3.9.0")
    with pytest.raises(StartupError, match=r"is of Apache Kafka 3\.9\.0"):
        make(node, cluster)


def test_a_cut_jar_is_noticed(tmp_path: Path) -> None:
    """A jar that is missing or shorter than it was pinned counts as missing."""
    first, second, *_ = pinned = jars.pins()
    assert jars.missing(tmp_path, pinned) == pinned
    (tmp_path / first.file_name).write_bytes(bytes(first.size_bytes))
    (tmp_path / second.file_name).write_bytes(bytes(second.size_bytes - 1))
    assert jars.missing(tmp_path, pinned) == pinned[1:]


async def _read_until(reader: KafkaReader | KafkaGroupReader, count: int) -> list[LogRecord]:
    """Poll until `count` records came, through time-outs of the broker."""
    records: list[LogRecord] = []
    async with asyncio.timeout(RECOVERED_WITHIN_S):
        while len(records) < count:
            with contextlib.suppress(LogUnavailable):
                records += await reader.poll(timeout_ms=100, max_records=1_000)
    return records


async def _send_again(writer: KafkaWriter) -> None:
    """Send, trying again while the outcome is unknown."""
    async with asyncio.timeout(RECOVERED_WITHIN_S):
        while True:
            try:
                await writer.send(*PLACES[0], b"again")
                return
            except SendUnknown:
                continue


async def _commit_again(member: KafkaGroupReader, offsets: dict[TopicPartition, int]) -> None:
    """Commit, trying again while the outcome is unknown."""
    async with asyncio.timeout(RECOVERED_WITHIN_S):
        while True:
            try:
                return await member.commit(offsets)
            except LogUnavailable:
                await member.poll(timeout_ms=100, max_records=1)


async def _until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(RECOVERED_WITHIN_S):
        while not holds():  # noqa: ASYNC110  # the condition has no event
            await asyncio.sleep(0.01)
