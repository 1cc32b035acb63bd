"""Which `seen` entries are due to go: a queue per partition in append order.

Time is the append time of the last *committed* record of the partition, never a wall clock:
whatever may be delivered again was appended later than that, so a copy that may still come within
the retention always finds the entry, before a crash and after it. Removing is bounded per record.
There is a key for each request of the retention, and nothing else: times stand in the entries.
"""

from collections import deque
from collections.abc import Callable, Iterable

from schemas import limits


class SeenExpiry:
    """Mutable state: the entries of `seen` by partition, oldest first."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[bytes]] = {}

    def rebuild(self, entries: Iterable[tuple[int, int, bytes]]) -> None:
        """Start over from (partition, append time, key) of every entry that recovery found."""
        self._queues.clear()
        for partition, _, key in sorted(entries):
            self.add(partition, key)

    def add(self, partition: int, key: bytes) -> None:
        """Queue a new entry behind those of its partition."""
        self._queues.setdefault(partition, deque()).append(key)

    def due(
        self,
        partition: int,
        committed_at_ms: int,
        appended_at_ms: Callable[[bytes], int | None],
    ) -> tuple[bytes, ...]:
        """Take the keys whose retention ended before `committed_at_ms`, a bounded number.

        Args:
            appended_at_ms: tells the time of a key's entry, None where there is none any more.
        """
        queue = self._queues.get(partition)
        horizon_ms = committed_at_ms - limits.SEEN_RETENTION_MS
        taken: list[bytes] = []
        while queue and len(taken) < limits.SEEN_SWEPT_PER_RECORD_MAX:
            appended_ms = appended_at_ms(queue[0])
            if appended_ms is not None and appended_ms >= horizon_ms:
                break
            taken.append(queue.popleft())
        return tuple(taken)
