"""What the sink holds between the log and the store: which record is next, which rows wait, what
may be committed.

Owns these decisions and no I/O. The rule it keeps: a next-offset becomes committable only once
every record below it was stored (or buried), and rollups of the hours touched are recomputed
before the commit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from infra.ports import LogRecord, TopicPartition, UsageRow
from schemas import limits

_HOUR_MS = 3_600_000
# A gap that stands after so many reads is what retention removed, not a fetch that went astray.
_GAP_READS = 3


def commit_pause_s(refresh_took_s: float) -> float:
    """Return how long after the start of one refresh the next one may begin, seconds.

    Recomputing an hour costs more the fuller it is: the pause grows with it, up to a bound.
    """
    pause_s = refresh_took_s / limits.METERING_REFRESH_SHARE_MAX
    return min(
        max(pause_s, limits.METERING_COMMIT_EVERY_MS_MIN / 1_000),
        limits.METERING_COMMIT_EVERY_MS_MAX / 1_000,
    )


class Verdict(Enum):
    """What to do with a record that was polled."""

    TAKE = auto()
    SKIP = auto()
    """Already taken, or of a fetch from before a rebalance."""
    SEEK_BACK = auto()
    """Records are missing before it: read again from the expected offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A decoded usage event that is not stored yet."""

    record: LogRecord
    row: UsageRow


@dataclass(slots=True, kw_only=True)
class Intake:
    """Mutable state of one sink; cleared but for `first_seen` and `dirty` at each rebalance."""

    expected: dict[TopicPartition, int] = field(default_factory=dict)
    """Next offset to take; absent until the first record where nothing was ever committed."""
    first_seen: dict[TopicPartition, int] = field(default_factory=dict)
    """Lowest offset ever taken: where to go back to while there is no commit."""
    pending: list[Held] = field(default_factory=list)
    pending_since_s: float | None = None
    stored: dict[TopicPartition, int] = field(default_factory=dict)
    """Next-offsets of which all below is stored."""
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    dirty: dict[tuple[str, int], UsageRow] = field(default_factory=dict)
    """One stored row of each (org, hour) whose rollup lags behind."""
    _gap: tuple[TopicPartition, int, int] | None = None
    _gap_reads: int = 0

    def begin(
        self, partitions: frozenset[TopicPartition], committed: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Start anew after a rebalance; return where to seek.

        What was read and not committed comes again, to us or to another member; storing it twice
        is harmless.
        """
        self.expected = {
            partition: committed.get(partition, self.first_seen.get(partition, -1))
            for partition in partitions
            if partition in committed or partition in self.first_seen
        }
        self.stored, self.committed = dict(self.expected), dict(self.expected)
        self.pending, self.pending_since_s, self._gap = [], None, None
        return dict(self.expected)

    def note_dropped(self, records: Sequence[LogRecord]) -> None:
        """Remember where polled records begin that are not taken, so that `begin` goes back
        there."""
        for record in records:
            partition = TopicPartition(record.topic, record.partition)
            self.first_seen.setdefault(partition, record.offset)

    def judge(self, record: LogRecord) -> Verdict:
        """Say whether this record is the next one of its partition.

        A gap that is still there after reading again is what retention removed; it is passed over.
        """
        partition = TopicPartition(record.topic, record.partition)
        expected = self.expected.get(partition)
        if expected is None or record.offset == expected:
            return Verdict.TAKE
        if record.offset < expected:
            return Verdict.SKIP
        gap = (partition, expected, record.offset)
        self._gap_reads = self._gap_reads + 1 if gap == self._gap else 1
        self._gap = gap
        return Verdict.TAKE if self._gap_reads >= _GAP_READS else Verdict.SEEK_BACK

    def take(self, record: LogRecord, row: UsageRow | None, now_s: float) -> None:
        """Hold a decoded record; `row` is None for one that was buried."""
        partition = TopicPartition(record.topic, record.partition)
        self.first_seen.setdefault(partition, record.offset)
        self.expected[partition] = record.offset + 1
        if row is not None:
            self.pending.append(Held(record=record, row=row))
        if self.pending_since_s is None:
            self.pending_since_s = now_s

    def insert_due_s(self) -> float | None:
        """Return from when on the pending rows are to be inserted; None = nothing waits."""
        if self.pending_since_s is None:
            return None
        if self.is_full:
            return self.pending_since_s
        return self.pending_since_s + limits.METERING_LINGER_MS / 1_000

    @property
    def is_full(self) -> bool:
        """Tell whether no further record may be polled before an insert."""
        return len(self.pending) >= limits.METERING_BATCH_ROWS_MAX

    def note_stored(self) -> None:
        """All pending rows are stored: what was read may be committed once rollups are fresh."""
        for held in self.pending:
            hour_ms = held.row.usage.accepted_at_ms // _HOUR_MS * _HOUR_MS
            self.dirty[held.row.usage.org, hour_ms] = held.row
        self.pending, self.pending_since_s = [], None
        self.stored.update(self.expected)

    def committable(self) -> Mapping[TopicPartition, int]:
        """Return next-offsets that are stored and not committed."""
        return {
            partition: offset
            for partition, offset in self.stored.items()
            if self.committed.get(partition) != offset
        }
