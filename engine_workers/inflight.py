"""Which offsets of a lane are finished, and so what may be committed (design rule 6.5).

Pure bookkeeping: an offset is finished once its id's end was accepted and its usage acknowledged.
Only the lowest unfinished offset is ever committed; anything above may be delivered again.
"""

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class LaneProgress:
    """Progress in one lane: taken in offset order, finished in any order."""

    next_offset: int
    """The next offset to read; everything below has been taken."""
    _open: deque[int] = field(default_factory=deque)
    _finished: set[int] = field(default_factory=set)
    gap_before: int | None = None
    """An offset past `next_offset` that the log has offered once already; see `admits`."""

    def admits(self, offset: int) -> bool:
        """Tell whether to take this offset now; False for one taken before or out of turn.

        A first jump ahead is refused, for it comes from a position that a rebalance moved: the
        caller seeks to `next_offset`. A second one at the same place means that the log holds
        nothing in between (retention), and is taken.
        """
        if offset < self.next_offset:
            return False
        if offset > self.next_offset and self.gap_before != self.next_offset:
            self.gap_before = self.next_offset
            return False
        return True

    def take(self, offset: int) -> None:
        """Note that the record at `offset` is being worked on."""
        assert offset >= self.next_offset, "offsets are taken once, in order"
        self._open.append(offset)
        self.next_offset = offset + 1

    def finish(self, offset: int) -> None:
        """Note that the record at `offset` needs no more work."""
        self._finished.add(offset)
        while self._open and self._open[0] in self._finished:
            self._finished.discard(self._open.popleft())

    @property
    def commit_offset(self) -> int:
        """The lowest unfinished offset, or the next to read where all are finished."""
        return self._open[0] if self._open else self.next_offset

    @property
    def unfinished(self) -> int:
        """How many records are being worked on."""
        return max(0, len(self._open) - len(self._finished))

    @property
    def span(self) -> int:
        """How many offsets may be delivered again after a crash now."""
        return self.next_offset - self.commit_offset
