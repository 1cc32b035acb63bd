"""The memory log under the contract suite, on a loop whose time is virtual."""

import itertools

import pytest

from infra.memory import MemoryBroker
from infra.ports import GroupReader, LogAdmin, LogReader, LogWriter, TopicPartition
from tests.contract.log_suite import CHECKS, Check
from tests.contract.virtual_time import LoopClock, run_virtually


class MemoryHarness:
    """One memory broker under the suite. Implements `tests.contract.log_suite.LogHarness`."""

    def __init__(self) -> None:
        self._broker = MemoryBroker(LoopClock())
        self._numbers = itertools.count()

    async def writer(self) -> LogWriter:
        """Return a writer."""
        return self._broker.writer("writer")

    async def reader(self) -> LogReader:
        """Return a reader."""
        return self._broker.reader("reader")

    async def group_reader(self, group: str, member: str) -> GroupReader:
        """Return a group reader."""
        return self._broker.group_reader(group, member)

    async def admin(self) -> LogAdmin:
        """Return an admin."""
        return self._broker.admin()

    def unique(self, stem: str) -> str:
        """Return a fresh name."""
        return f"{stem}-{next(self._numbers)}"

    async def truncate(self, place: TopicPartition, start: int) -> None:
        """Drop the records below `start`."""
        self._broker.truncate(place, start)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check: Check) -> None:
    """The memory log keeps this clause of the log's contract."""
    run_virtually(check(MemoryHarness()))
