"""Scripted faults and a small broker for the tests of the memory log."""

import asyncio
from collections import deque

from infra.memory import CommitFate, MemoryBroker, NoFaults, PollFate, SendFate
from infra.ports import TopicPartition
from tests.contract.virtual_time import LoopClock

HERE = TopicPartition("t", 0)
THERE = TopicPartition("t", 1)
BOUND_S = 10.0


class Script(NoFaults):
    """Deals out the given fates in order, then no faults any more."""

    def __init__(
        self,
        *sends: SendFate,
        polls: tuple[PollFate, ...] = (),
        commits: tuple[CommitFate, ...] = (),
    ) -> None:
        self._sends, self._polls, self._commits = deque(sends), deque(polls), deque(commits)

    def send(self, writer: str, place: TopicPartition, value: bytes) -> SendFate:
        """Return the next fate of a send."""
        return self._sends.popleft() if self._sends else super().send(writer, place, value)

    def poll(self, reader: str, group: str | None) -> PollFate:
        """Return the next fate of a poll."""
        return self._polls.popleft() if self._polls else super().poll(reader, group)

    def commit(self, reader: str, group: str) -> CommitFate:
        """Return the next fate of a commit."""
        return self._commits.popleft() if self._commits else super().commit(reader, group)


def broker_with(script: Script | None = None) -> MemoryBroker:
    """Return a broker with one topic of two partitions."""
    broker = MemoryBroker(LoopClock(), script)
    broker.create_topic("t", 2, {})
    return broker


def landed(broker: MemoryBroker, place: TopicPartition = HERE) -> list[bytes]:
    """Return the values in a partition."""
    return [record.value for record in broker.partition(place).read(0, 1_000)]


def now_s() -> float:
    """Return the virtual time."""
    return asyncio.get_running_loop().time()
