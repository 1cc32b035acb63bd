"""For how long the log is called silent, by what was sent and what was answered."""

import asyncio
from collections import deque

import pytest

from infra.errors import SendRefused, SendUnknown
from infra.memory import MemoryBroker, NoFaults, SendFate
from infra.ports import TopicPartition
from infra.watched_writer import Pulse, WatchedWriter
from tests.contract.virtual_time import LoopClock, run_virtually

LOSE = SendFate(kind="lose")
DELIVER = SendFate()


class _Fates(NoFaults):
    """Gives sends their fates in turn."""

    def __init__(self, *fates: SendFate) -> None:
        self._fates = deque(fates)

    def send(self, writer: str, place: TopicPartition, value: bytes) -> SendFate:
        """Return the next fate."""
        return self._fates.popleft()


def watched(*fates: SendFate) -> tuple[Pulse, WatchedWriter]:
    """Return a pulse and a writer to a topic of two partitions, whose sends take 10 s to fail."""
    broker = MemoryBroker(LoopClock(), _Fates(*fates))
    broker.create_topic("t", 2, {})
    pulse = Pulse(LoopClock())
    return pulse, WatchedWriter(broker.writer("w", send_timeout_ms=10_000), pulse)


def test_a_log_that_answers_is_never_silent() -> None:
    """What was answered is no silence, however long ago; nor is it before anything was sent."""

    async def scenario() -> None:
        pulse, writer = watched(DELIVER)
        await asyncio.sleep(5)
        assert pulse.silent_s() == 0
        await writer.send("t", 0, b"x")
        await asyncio.sleep(5)
        assert pulse.silent_s() == 0
        with pytest.raises(SendRefused):
            await writer.send("absent", 0, b"x")
        assert pulse.silent_s() == 0

    run_virtually(scenario())


def test_silence_grows_over_failures_until_an_answer() -> None:
    """It counts from the oldest send without an answer, and a failed one is none."""

    async def scenario() -> None:
        pulse, writer = watched(LOSE, LOSE, DELIVER)
        first = asyncio.create_task(writer.send("t", 0, b"x"))
        await asyncio.sleep(4)
        assert pulse.silent_s() == pytest.approx(4)
        with pytest.raises(SendUnknown):
            await first
        with pytest.raises(SendUnknown):
            await writer.send("t", 0, b"x")
        assert pulse.silent_s() == pytest.approx(20)
        await writer.send("t", 0, b"x")
        assert pulse.silent_s() == 0

    run_virtually(scenario())


def test_one_silent_partition_is_not_the_log() -> None:
    """As long as anything is answered, what waits elsewhere makes no silence."""

    async def scenario() -> None:
        pulse, writer = watched(LOSE, DELIVER)
        first = asyncio.create_task(writer.send("t", 0, b"x"))
        await asyncio.sleep(4)
        await writer.send("t", 1, b"x")
        await asyncio.sleep(1)
        assert pulse.silent_s() == pytest.approx(1)
        with pytest.raises(SendUnknown):
            await first

    run_virtually(scenario())
