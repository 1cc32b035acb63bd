"""The memory log's reader outside groups. Implements `infra.ports.LogReader`."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from infra.errors import LogUnavailable
from infra.memory.cursors import Cursors
from infra.memory.wakeup import Wakeup
from infra.ports import Bounds, LogRecord, TopicPartition

if TYPE_CHECKING:
    from infra.memory.broker import MemoryBroker


class MemoryReader:
    """Reads chosen partitions from chosen offsets."""

    def __init__(self, broker: "MemoryBroker", name: str) -> None:
        self.name = name
        self._broker = broker
        self._wakeup = Wakeup()
        self._cursors = Cursors(broker.partition, self._wakeup)
        self._closed = False

    async def bounds(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Bounds]:
        """Return the current bounds of each partition."""
        await self._check_open()
        return {place: self._broker.partition(place).bounds() for place in partitions}

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions from the given offsets on."""
        self._cursors.assign(positions)

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that `poll` has not returned yet."""
        return self._cursors.position(partition)

    async def poll(self, *, timeout_ms: int, max_records: int) -> Sequence[LogRecord]:
        """Return the next records, as soon as there are any; see the port."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        over, fate = False, self._broker.faults.poll(self.name, None)
        if fate.stall_ms:
            self._broker.fired["poll.stall"] += 1
        if fate.stall_ms or timeout_ms <= 0 or not self._cursors.idle():
            await asyncio.sleep(fate.stall_ms / 1000)  # gives way in any case, as a wait does
            over = loop.time() >= deadline_s
        elif not self._closed:
            over = await self._wakeup.sleep_until(deadline_s)
        while True:
            if self._closed:
                await self._check_open()
            records = self._cursors.take(max_records)
            if records or over:
                return records
            over = await self._wakeup.sleep_until(deadline_s)

    async def close(self) -> None:
        """Stop reading."""
        self.kill()

    def kill(self) -> None:
        """Die: a waiting poll and all later calls raise LogUnavailable."""
        self._closed = True
        self._cursors.release()
        self._wakeup.wake()

    async def _check_open(self) -> None:
        if self._closed:
            # Give way first, so that a loop that retries at once cannot starve the others.
            await asyncio.sleep(0)
            raise LogUnavailable(f"reader {self.name} is closed")
