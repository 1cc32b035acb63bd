"""Where one reader stands in each of its partitions.

Owns positions, pauses and the turn order; nothing waits here. Used by the plain reader and the
group reader alike.
"""

from collections.abc import Callable, Collection, Mapping

from infra.errors import OffsetUnreadable
from infra.memory.partition import PartitionLog
from infra.memory.wakeup import Wakeup
from infra.ports import LogRecord, TopicPartition


class _Cursor:
    """Where one partition is read. Hears of its changes: a `Watcher`."""

    __slots__ = ("log", "news", "next_offset", "paused", "wakeup")

    def __init__(
        self, log: PartitionLog, next_offset: int, news: "dict[_Cursor, None]", wakeup: Wakeup
    ) -> None:
        self.log = log
        self.next_offset = next_offset
        self.news = news
        self.wakeup = wakeup
        self.paused = False

    def wake(self) -> None:
        """Be looked at by the next poll, and wake the one that sleeps."""
        self.news[self] = None
        self.wakeup.wake()


class Cursors:
    """Positions over a set of partitions."""

    def __init__(self, find: Callable[[TopicPartition], PartitionLog], wakeup: Wakeup) -> None:
        self._find = find
        self._wakeup = wakeup
        self._cursors: dict[TopicPartition, _Cursor] = {}
        self._news: dict[_Cursor, None] = {}
        """Those that may have something to take, by how long they have: a dict for its order."""
        self._turn = 0

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these from now on; pauses are lost.

        Raises: LogUnavailable for an unknown partition, and nothing changed.
        """
        news: dict[_Cursor, None] = {}
        cursors = {
            place: _Cursor(self._find(place), at, news, self._wakeup)
            for place, at in positions.items()
        }
        self.release()
        self._cursors, self._news = cursors, news
        for cursor in cursors.values():
            cursor.log.watch(cursor)
            news[cursor] = None
        self._wakeup.wake()

    def release(self) -> None:
        """Read nothing from now on."""
        for cursor in self._cursors.values():
            cursor.log.unwatch(cursor)
        self._cursors, self._news = {}, {}

    def position(self, place: TopicPartition) -> int:
        """Return the next offset to be taken. Raises KeyError where it is not assigned."""
        return self._cursors[place].next_offset

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Take from `offset` next; no effect where it is not assigned."""
        if place in self._cursors:
            self._cursors[place].next_offset = offset
            self._cursors[place].wake()

    def pause(self, places: Collection[TopicPartition]) -> None:
        """Take nothing of these until resumed or reassigned."""
        self._set_paused(places, True)

    def resume(self, places: Collection[TopicPartition]) -> None:
        """Undo `pause`."""
        self._set_paused(places, False)
        self._wakeup.wake()

    def idle(self) -> bool:
        """Tell whether there is nothing to take."""
        for cursor in self._news:
            if cursor.next_offset != cursor.log.end and not cursor.paused:
                return False
        return True

    def take(self, count_max: int) -> list[LogRecord]:
        """Take up to `count_max` records and move past them; partitions take turns at being first.

        Raises: OffsetUnreadable, and nothing was taken.
        """
        ready: list[_Cursor] = []
        for cursor in tuple(self._news):
            log, offset = cursor.log, cursor.next_offset
            if offset == log.end:
                del self._news[cursor]
                continue
            if cursor.paused:
                continue
            if not log.start <= offset < log.end:
                raise OffsetUnreadable(log.place.topic, log.place.partition, offset)
            ready.append(cursor)
        turn, taken = self._turn, list[LogRecord]()
        self._turn += 1
        if len(ready) > 1:
            turn %= len(ready)
            ready = ready[turn:] + ready[:turn]
        for cursor in ready:
            records = cursor.log.read(cursor.next_offset, count_max - len(taken))
            cursor.next_offset += len(records)
            taken.extend(records)
            if len(taken) >= count_max:
                break
        return taken

    def _set_paused(self, places: Collection[TopicPartition], paused: bool) -> None:
        for place in places:
            cursor = self._cursors.get(place)
            if cursor is not None:
                cursor.paused = paused
