"""Which source offsets may be committed: those whose changelog writes have all been acknowledged.

Owns the order between changelog and commit on which the exactness of `totals.py` rests. Records
are opened in the order they were handled and become committable in that order only; a write that
failed or a record left out on the way stops everything, so that the process restarts from the last
commit.
"""

from asyncio import Future
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from schemas import limits
from streams.stream_app.errors import DeliveryGap


@dataclass(frozen=True, slots=True)
class Committable:
    """How far a partition may be committed, and the append time of the record before that."""

    next_offset: int
    append_time_ms: int


class Confirmations:
    """Mutable state: handled records whose writes are under way, and what is committed."""

    def __init__(self) -> None:
        self._pending: dict[int, deque[tuple[Committable, Sequence[Future[Any]]]]] = {}
        self._confirmed: dict[int, Committable] = {}
        self._committed: dict[int, Committable] = {}
        self._expected: dict[int, int] = {}

    def expect(self, partition: int, offset: int) -> None:
        """Check, before it is handled, that no record of the partition is missing before `offset`.

        Records come again after a rebalance, so lower ones are fine. The first one counts as well:
        Faust was seen to leave out a record while it resumed. Raises DeliveryGap.
        """
        expected = self._expected.get(partition, offset)
        if offset > expected:
            raise DeliveryGap(partition, expected, offset)

    @property
    def expected(self) -> Mapping[int, int]:
        """Return the next offset of each partition that is ours."""
        return self._expected

    def resume(self, next_offsets: Mapping[int, int]) -> None:
        """Say where delivery starts in each partition that is ours now, and forget the others."""
        self._expected = dict(next_offsets)

    def add(
        self, partition: int, offset: int, append_time_ms: int, writes: Sequence[Future[Any]]
    ) -> None:
        """Note that the record at `offset` was handled and caused these changelog writes."""
        entry = Committable(offset + 1, append_time_ms)
        self._expected[partition] = offset + 1
        self._pending.setdefault(partition, deque()).append((entry, writes))

    @property
    def unconfirmed(self) -> int:
        """Return how many handled records wait for their writes."""
        return sum(map(len, self._pending.values()))

    @property
    def full(self) -> bool:
        """Tell whether no more records should be handled for now."""
        return self.unconfirmed >= limits.TOTALS_UNCONFIRMED_MAX

    def advance(self) -> dict[int, Committable]:
        """Return what may be committed beyond what is; by partition.

        Records delivered again stand behind their first delivery here, so a partition never falls
        back. Raises what a write raised, for ever after.
        """
        for partition, queue in self._pending.items():
            while queue and all(write.done() for write in queue[0][1]):
                for write in queue[0][1]:
                    write.result()
                entry, _ = queue.popleft()
                held = self._confirmed.get(partition)
                if held is None or entry.next_offset > held.next_offset:
                    self._confirmed[partition] = entry
        return {
            partition: entry
            for partition, entry in self._confirmed.items()
            if self._committed.get(partition) != entry
        }

    def committed(self, entries: dict[int, Committable]) -> None:
        """Note that a commit was acknowledged."""
        self._committed.update(entries)

    def committed_at_ms(self, partition: int) -> int:
        """Return the append time of the last committed record, 0 before the first commit."""
        entry = self._committed.get(partition)
        return entry.append_time_ms if entry else 0
