"""What may go wrong at the memory log: decisions passed in, which the log carries out and counts.

Owns the vocabulary of faults. Does not own when they strike: the simulator implements `FaultPlan`
from its seed, the product uses `NoFaults`.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from infra.ports import TopicPartition

SendKind = Literal["deliver", "lose", "ack_lost", "late", "duplicate"]
CommitKind = Literal["take", "stale", "lose", "ack_lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFate:
    """What happens to one record on its way.

    deliver     lands after `land_ms` and is acknowledged `ack_ms` later; where that passes the
                bound, the sender gets SendUnknown at the bound and the record lands all the same
    lose        never lands; SendUnknown at the bound
    ack_lost    lands after `land_ms`; SendUnknown at the bound
    late        SendUnknown at the bound; lands `late_ms` after it, whatever became of the sender
    duplicate   as deliver, and lands once more `late_ms` later; as deliver for an idempotent writer
    """

    kind: SendKind = "deliver"
    land_ms: int = 0
    ack_ms: int = 0
    late_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PollFate:
    """What happens before one poll: the process stalls, then rebalances strike its group."""

    stall_ms: int = 0
    """A stalled member does not poll, so its session can run out meanwhile."""
    rebalances: int = 0
    scatter: bool = False
    """Whether these rebalances deal the partitions out afresh instead of keeping them in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFate:
    """What happens to one commit, after a stall of `stall_ms`.

    take        judged by its generation
    stale       a rebalance strikes first, so it is refused
    lose        nothing is committed; LogUnavailable
    ack_lost    judged and taken; LogUnavailable all the same
    """

    kind: CommitKind = "take"
    stall_ms: int = 0


DELIVER = SendFate()
POLL = PollFate()
TAKE = CommitFate()


class FaultPlan(Protocol):
    """Decides the fate of each send, poll and commit; asked once for each, as they happen."""

    def send(self, writer: str, place: TopicPartition, value: bytes) -> SendFate:
        """Decide on one record that `writer` enqueues."""

    def poll(self, reader: str, group: str | None) -> PollFate:
        """Decide on one poll; `group` is None outside groups, where rebalances have no effect."""

    def commit(self, reader: str, group: str) -> CommitFate:
        """Decide on one commit."""


class NoFaults:
    """Nothing ever goes wrong. Implements `FaultPlan`."""

    def send(self, writer: str, place: TopicPartition, value: bytes) -> SendFate:
        """Deliver at once."""
        return DELIVER

    def poll(self, reader: str, group: str | None) -> PollFate:
        """Let it poll."""
        return POLL

    def commit(self, reader: str, group: str) -> CommitFate:
        """Let the group judge it."""
        return TAKE
