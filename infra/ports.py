"""Every seam of Millstream as a Protocol; these docstrings define what adapters must do.

Adapters: `infra/kafka/` and `infra/clickhouse/` (real), `infra/memory/` (in memory, also
shipped), `infra/system.py` (clock and entropy). One contract suite in `tests/contract` runs on
both kinds. The engine port is `engine_workers/engine/port.py`. No other module defines an I/O
interface.

Errors (all in `infra/errors.py`):

    LogError
      SendRefused        nothing was appended (too large, no such topic)
      SendUnknown        it may or may not have been appended, now or later; the sender must not
      believe either OffsetUnreadable   the position lies below the log's start (retention) or
      beyond its end
      CommitRefused      the group no longer counts this member's generation; nothing was committed
      LogUnavailable     the broker cannot be reached within the bound; nothing changed
    StoreError
      StoreUnavailable   nothing was stored, or it is unknown; the same insert may be repeated
      StoreRejected      the rows are at fault; repeating will not help
"""

from asyncio import Future
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from schemas.usage import UsageRecorded


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


class LogRecord(Struct, frozen=True):
    """One record as read back. `append_time_ms` is the broker's (LogAppendTime), never the
    sender's."""

    topic: str
    partition: int
    offset: int
    append_time_ms: int
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


class Appended(NamedTuple):
    """Where an acknowledged record landed."""

    offset: int
    append_time_ms: int


class Bounds(NamedTuple):
    """Offsets of one partition: the first readable one, and the next to be appended."""

    start: int
    end: int


class Assignment(NamedTuple):
    """What a group member currently has. `epoch` grows by one at each rebalance seen by this
    reader."""

    epoch: int
    partitions: frozenset[TopicPartition]


class Clock(Protocol):
    """Time as a value passed in. Only keeps things moving: no rule's safety depends on it."""

    def now_ms(self) -> int:
        """Return Unix time in milliseconds; may step."""

    def monotonic_s(self) -> float:
        """Return seconds that never run backwards, from an arbitrary origin."""


class Entropy(Protocol):
    """Randomness as a value passed in; the simulator seeds it."""

    def uuid(self) -> str:
        """Return a fresh random UUID (version 4, RFC 9562) as canonical text."""

    def bits(self, count: int) -> int:
        """Return a random integer of `count` bits, 0 <= it < 2**count."""

    def token(self, size: int) -> bytes:
        """Return `size` bytes fit for secrets."""


class LogWriter(Protocol):
    """Appends records, idempotently and with all replicas' acknowledgement (acks=all).

    Order: records of one writer to one partition are appended in the order of their `enqueue`
    calls, unless a send fails; a writer that failed recovers by itself (new producer), after
    which earlier unacknowledged records have raised SendUnknown and may still land late. Every
    send has a time bound.
    """

    async def enqueue(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> "Future[Appended]":
        """Queue a record; return a future of its acknowledgement.

        Waits while the buffer is full, within the writer's time bound. The future raises
        SendRefused or SendUnknown; it is safe never to await it.

        Raises: SendRefused where the record can never be appended.
        """

    async def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> Appended:
        """Append one record and wait for its acknowledgement. Raises SendRefused, SendUnknown."""

    async def close(self) -> None:
        """Flush within a bound and release the connection; unacknowledged sends raise
        SendUnknown."""


class LogReader(Protocol):
    """Reads chosen partitions from chosen offsets; belongs to no group and commits nothing."""

    async def bounds(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Bounds]:
        """Return the current bounds of each partition. Raises LogUnavailable."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions from now on, each from the given offset (the next one
        read)."""

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that `poll` has not returned yet."""

    async def poll(self, *, timeout_ms: int, max_records: int) -> Sequence[LogRecord]:
        """Return the next records, in offset order within each partition; empty after
        `timeout_ms` without any.

        Returns as soon as there are any. Cancelling a waiting poll loses nothing.

        Raises: OffsetUnreadable where an assigned position is no longer in the log; LogUnavailable.
        """

    async def close(self) -> None:
        """Release the connection."""


class GroupReader(Protocol):
    """Reads as a member of a consumer group, with eager rebalances and manual commits.

    At a rebalance every partition's position falls back to its committed offset (the log's start
    where there is none) and pauses are lost; `assignment()` then shows a higher epoch. Callers
    look at it each turn and seek and pause again (design rule 9). A member that does not poll for
    `max_poll_interval` is ejected, so poll also when all is paused.
    """

    async def join(
        self, topics: Collection[str], *, work: Callable[[], Mapping[TopicPartition, int]] = dict
    ) -> None:
        """Subscribe to `topics` and take part in the group. Raises LogUnavailable.

        Partitions are spread evenly, stay where they are, and where some have to move those with
        the least unfinished work do (`infra/assignor.py`). `work` tells this member's, by
        partition; it is asked at each rebalance, and what it does not name is idle.
        """

    def assignment(self) -> Assignment:
        """Return the newest assignment noted; epoch 0 and no partitions before the first one."""

    def member_id(self) -> str | None:
        """Return this member's id in the group, or None before it joined."""

    async def poll(self, *, timeout_ms: int, max_records: int) -> Sequence[LogRecord]:
        """Return the next records of the assigned, unpaused partitions; see LogReader.poll."""

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Make `offset` the next one read. Ignored where the partition is not assigned any more."""

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return no records of these until resumed or reassigned."""

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Undo `pause`."""

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return committed next-offsets; a partition without one is absent. Raises
        LogUnavailable."""

    async def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """Commit next-offsets in this member's name.

        Success proves that this member still belonged to the group's current generation when the
        broker took it. Raises CommitRefused where it did not, LogUnavailable where the outcome is
        unknown.
        """

    async def leave(self) -> None:
        """Leave the group at once, so that others need not wait for the session time-out; then
        close."""


class LogAdmin(Protocol):
    """Makes topics; used by `apply` and tests."""

    async def topics(self) -> Mapping[str, int]:
        """Return partition counts by topic name. Raises LogUnavailable."""

    async def create(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic; no effect where it exists with that many partitions. Raises
        LogUnavailable."""

    async def alter(self, topic: str, config: Mapping[str, str]) -> None:
        """Set these topic settings, leaving others. Raises LogUnavailable."""

    async def settings(self, topic: str) -> Mapping[str, str]:
        """Return the settings of a topic that were set explicitly. Raises LogUnavailable."""

    async def group_offsets(self, group: str) -> Mapping[TopicPartition, int]:
        """Return a group's committed next-offsets. Raises LogUnavailable."""

    async def close(self) -> None:
        """Release the connection."""


class UsageRow(Struct, frozen=True):
    """A usage event with its place on the log: one row of `usage_events`."""

    usage: UsageRecorded
    partition: int
    offset: int


class UsageStore(Protocol):
    """Holds usage rows, one per request id however often inserted (design rule 6.4)."""

    async def insert(self, rows: Sequence[UsageRow]) -> None:
        """Store these rows, all or unknown.

        Rows of a request id already held collapse into one when read. Raises StoreUnavailable
        (repeat the same call), StoreRejected (never will).
        """

    async def refresh(self, rows: Sequence[UsageRow]) -> None:
        """Recompute the hourly rollups that these rows touch; harmless to repeat. Raises
        StoreUnavailable."""

    async def rows(self, request_id: str | None = None) -> Sequence[UsageRow]:
        """Return all rows as a reader sees them (collapsed), or the one of `request_id`."""

    async def physical_count(self) -> int:
        """Return how many rows are stored before collapsing."""

    async def disputed(self) -> Sequence[str]:
        """Return the ids whose stored copies differ in more than partition and offset; a healthy
        store has none."""

    async def close(self) -> None:
        """Release the connection."""
