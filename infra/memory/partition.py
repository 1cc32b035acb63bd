"""One partition as a plain list: append, read, truncate.

Owns offsets and append times, nothing of faults. Called by writers (append), cursors (read) and the
broker (truncate), all on one event loop.
"""

from typing import Protocol

from infra.ports import Appended, Bounds, Clock, LogRecord, TopicPartition


class Watcher(Protocol):
    """Whoever is told of every change of a partition."""

    def wake(self) -> None:
        """Hear that it grew, or was truncated."""


class PartitionLog:
    """The records of one partition, and the readers to wake when it grows."""

    __slots__ = ("_clock", "_last_append_ms", "_records", "_watchers", "end", "place", "start")

    def __init__(self, place: TopicPartition, clock: Clock) -> None:
        self.place = place
        self._clock = clock
        self._records: list[LogRecord] = []
        self.start = 0
        """The first readable offset."""
        self.end = 0
        """The next offset to be appended."""
        self._last_append_ms = 0
        # A dict because its order is that of the watchers' arrival: a run replays exactly.
        self._watchers: dict[Watcher, None] = {}

    def bounds(self) -> Bounds:
        """Return the first readable offset and the next one to be appended."""
        return Bounds(self.start, self.end)

    def append(
        self, key: bytes | None, value: bytes, headers: tuple[tuple[str, bytes], ...]
    ) -> Appended:
        """Append one record at the broker's time, which never runs backwards here."""
        append_time_ms = max(self._clock.now_ms(), self._last_append_ms)
        self._last_append_ms = append_time_ms
        offset = self.end
        topic, partition = self.place
        self._records.append(
            LogRecord(topic, partition, offset, append_time_ms, key, value, headers)
        )
        self.end += 1
        for watcher in self._watchers:
            watcher.wake()
        return Appended(offset, append_time_ms)

    def read(self, offset: int, count_max: int) -> list[LogRecord]:
        """Return up to `count_max` records from a readable `offset` on."""
        first = offset - self.start
        assert 0 <= first <= len(self._records), "the caller checks the bounds"
        return self._records[first : first + count_max]

    def truncate(self, start: int) -> None:
        """Forget all records below `start`, as retention does; never moves the start back."""
        start = min(max(start, self.start), self.end)
        del self._records[: start - self.start]
        self.start = start
        for watcher in self._watchers:
            watcher.wake()

    def watch(self, watcher: Watcher) -> None:
        """Wake `watcher` at each append from now on."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        """Undo `watch`; no effect where there was none."""
        self._watchers.pop(watcher, None)
