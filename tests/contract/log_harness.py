"""What the log's contract suite needs of an adapter's test, and the steps that its checks share."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Protocol

from infra.ports import GroupReader, LogAdmin, LogReader, LogRecord, LogWriter, TopicPartition

PATIENCE_S = 30.0
POLL_MS = 100
QUIET_MS = 300
"""How long a poll is given to prove that nothing comes."""


class LogHarness(Protocol):
    """What an adapter's test provides; it closes everything that it handed out."""

    async def writer(self) -> LogWriter:
        """Return a started writer."""

    async def reader(self) -> LogReader:
        """Return a started reader."""

    async def group_reader(self, group: str, member: str) -> GroupReader:
        """Return a started group reader that has not joined; its session takes 10 s to run out."""

    async def admin(self) -> LogAdmin:
        """Return a started admin."""

    def unique(self, stem: str) -> str:
        """Return a topic or group name that nobody else uses."""

    async def truncate(self, place: TopicPartition, start: int) -> None:
        """Drop the records below `start`, as retention would."""


Check = Callable[[LogHarness], Coroutine[None, None, None]]
"""One clause of the contract: passes or raises."""


async def make_topic(log: LogHarness, partitions: int) -> list[TopicPartition]:
    """Create a topic of its own for a check; return its partitions."""
    topic = log.unique("topic")
    await (await log.admin()).create(topic, partitions, {})
    return [TopicPartition(topic, index) for index in range(partitions)]


async def fill(log: LogHarness, places: Sequence[TopicPartition], count: int) -> None:
    """Send `count` records to each partition, with the values b"0", b"1", ..."""
    writer = await log.writer()
    for place in places:
        for index in range(count):
            await writer.send(*place, b"%d" % index)


async def read(reader: LogReader | GroupReader, count: int) -> list[LogRecord]:
    """Poll until `count` records came."""
    records: list[LogRecord] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(records) < count:
            records += await reader.poll(timeout_ms=POLL_MS, max_records=count - len(records))
    return records


def values(records: Sequence[LogRecord], place: TopicPartition) -> list[bytes]:
    """Return one partition's values in the order they were read."""
    return [record.value for record in records if (record.topic, record.partition) == place]
