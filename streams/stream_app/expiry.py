"""Which `seen` entries are due to go: a queue per partition in append order.

Time is the append time of the last *committed* record of the partition, never a wall clock:
whatever may be delivered again was appended later than that, so a copy that may still come within
the retention always finds the entry, before a crash and after it. Removing is bounded per record.
"""

from collections import deque
from collections.abc import Iterable

from schemas import limits


class SeenExpiry:
    """Mutable state: the entries of `seen` by partition, oldest first."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[tuple[int, bytes]]] = {}

    def rebuild(self, entries: Iterable[tuple[int, int, bytes]]) -> None:
        """Start over from (partition, append time, key) of every entry that recovery found."""
        self._queues.clear()
        for partition, append_time_ms, key in sorted(entries):
            self.add(partition, append_time_ms, key)

    def add(self, partition: int, append_time_ms: int, key: bytes) -> None:
        """Queue a new entry behind those of its partition."""
        self._queues.setdefault(partition, deque()).append((append_time_ms, key))

    def due(self, partition: int, committed_at_ms: int) -> tuple[bytes, ...]:
        """Take the keys whose retention ended before `committed_at_ms`, a bounded number."""
        queue = self._queues.get(partition)
        horizon_ms = committed_at_ms - limits.SEEN_RETENTION_MS
        taken: list[bytes] = []
        while queue and queue[0][0] < horizon_ms and len(taken) < limits.SEEN_SWEPT_PER_RECORD_MAX:
            taken.append(queue.popleft()[1])
        return tuple(taken)
