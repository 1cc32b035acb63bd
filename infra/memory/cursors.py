"""Where one reader stands in each of its partitions.

Owns positions, pauses and the turn order; nothing waits here. Used by the plain reader and the
group reader alike.
"""

from collections.abc import Callable, Collection, Mapping

from infra.errors import OffsetUnreadable
from infra.memory.partition import PartitionLog
from infra.memory.wakeup import Wakeup
from infra.ports import LogRecord, TopicPartition


class Cursors:
    """Positions over a set of partitions."""

    def __init__(self, find: Callable[[TopicPartition], PartitionLog], wakeup: Wakeup) -> None:
        self._find = find
        self._wakeup = wakeup
        self._positions: dict[TopicPartition, int] = {}
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._paused: set[TopicPartition] = set()
        self._turn = 0

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these from now on; pauses are lost.

        Raises: LogUnavailable for an unknown partition, and nothing changed.
        """
        logs = {place: self._find(place) for place in positions}
        self.release()
        self._positions, self._logs = dict(positions), logs
        for partition in logs.values():
            partition.watch(self._wakeup)
        self._wakeup.wake()

    def release(self) -> None:
        """Read nothing from now on."""
        for partition in self._logs.values():
            partition.unwatch(self._wakeup)
        self._positions, self._logs = {}, {}
        self._paused.clear()

    def position(self, place: TopicPartition) -> int:
        """Return the next offset to be taken. Raises KeyError where it is not assigned."""
        return self._positions[place]

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Take from `offset` next; no effect where it is not assigned."""
        if place in self._positions:
            self._positions[place] = offset
            self._wakeup.wake()

    def pause(self, places: Collection[TopicPartition]) -> None:
        """Take nothing of these until resumed or reassigned."""
        self._paused.update(place for place in places if place in self._positions)

    def resume(self, places: Collection[TopicPartition]) -> None:
        """Undo `pause`."""
        self._paused.difference_update(places)
        self._wakeup.wake()

    def idle(self) -> bool:
        """Tell whether there is nothing to take."""
        for place, offset in self._positions.items():
            if offset != self._logs[place].end and place not in self._paused:
                return False
        return True

    def take(self, count_max: int) -> list[LogRecord]:
        """Take up to `count_max` records and move past them; partitions take turns at being first.

        Raises: OffsetUnreadable, and nothing was taken.
        """
        ready: list[tuple[PartitionLog, int]] = []
        logs, paused = self._logs, self._paused
        for place, offset in self._positions.items():
            partition = logs[place]
            if offset == partition.end or place in paused:
                continue
            if not partition.start <= offset < partition.end:
                raise OffsetUnreadable(place.topic, place.partition, offset)
            ready.append((partition, offset))
        turn, taken = self._turn, list[LogRecord]()
        self._turn += 1
        for index in range(len(ready)):
            partition, offset = ready[(turn + index) % len(ready)]
            records = partition.read(offset, count_max - len(taken))
            self._positions[partition.place] = offset + len(records)
            taken.extend(records)
            if len(taken) >= count_max:
                break
        return taken
