"""A consumer group's coordinator: members, generations, assignments, commits and session time-outs.

Owns who has which partition. A rebalance takes effect here at once, while a member goes by what it
noted last until it polls again: that is how zombies come about. Called by group readers and the
broker.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from infra.assignor import Claim, assign_idlest
from infra.errors import CommitRefused
from infra.memory.wakeup import Wakeup
from infra.ports import TopicPartition

Work = Callable[[], Mapping[TopicPartition, int]]
"""Returns a member's unfinished work by partition."""


class Member:
    """One membership, from joining until leaving or ejection."""

    def __init__(
        self,
        member_id: str,
        topics: Collection[str],
        wakeup: Wakeup,
        session_timeout_ms: int,
        work: Work = dict,
    ) -> None:
        self.member_id = member_id
        self.topics = frozenset(topics)
        self.work = work
        self.wakeup = wakeup
        self.session_timeout_s = session_timeout_ms / 1000
        self.polling = False
        self.last_poll_s = 0.0
        self.timer: asyncio.TimerHandle | None = None


class Group:
    """One consumer group."""

    def __init__(self, partitions: Callable[[], Sequence[TopicPartition]]) -> None:
        self._partitions = partitions
        self._members: dict[str, Member] = {}
        self._assigned: dict[str, frozenset[TopicPartition]] = {}
        self.generation = 0
        self.commits: dict[TopicPartition, int] = {}

    def add(self, member: Member) -> None:
        """Let a member in; its session runs from now."""
        self._members[member.member_id] = member
        self.rest(member)
        self.rebalance()

    def remove(self, member_id: str) -> bool:
        """Take a member out (leave, ejection, death notice); tell whether it was in."""
        member = self._members.pop(member_id, None)
        if member is None:
            return False
        if member.timer is not None:
            member.timer.cancel()
            member.timer = None
        self.rebalance()
        member.wakeup.wake()  # a living one finds itself ejected, and joins again
        return True

    def has(self, member_id: str) -> bool:
        """Tell whether the group counts this member."""
        return member_id in self._members

    def subscribes(self, topic: str) -> bool:
        """Tell whether any member reads `topic`."""
        return any(topic in member.topics for member in self._members.values())

    def assigned(self, member_id: str) -> frozenset[TopicPartition]:
        """Return what the current generation gives to a member."""
        return self._assigned[member_id]

    def rebalance(self, *, scatter: bool = False) -> None:
        """Start a new generation; `scatter` deals all partitions out afresh."""
        self.generation += 1
        order = list(self._members)
        if scatter and order:
            turn = self.generation % len(order)
            order, self._assigned = order[turn:] + order[:turn], {}
        claims = {member_id: self._claim(self._members[member_id]) for member_id in order}
        self._assigned = assign_idlest(self._partitions(), claims)
        for member in self._members.values():
            member.wakeup.wake()

    def commit(
        self, member_id: str | None, generation: int, next_offsets: Mapping[TopicPartition, int]
    ) -> None:
        """Take a commit of the current generation. Raises CommitRefused; then nothing changed."""
        if member_id is None or member_id not in self._members:
            raise CommitRefused(f"member {member_id} is not in the group")
        if generation != self.generation:
            raise CommitRefused(f"generation {generation} is over: {self.generation} is current")
        foreign = [place for place in next_offsets if place not in self._assigned[member_id]]
        if foreign:
            raise CommitRefused(f"not assigned to member {member_id}: {foreign}")
        self.commits.update(next_offsets)

    def poll_begins(self, member: Member) -> None:
        """Note that a member is polling, which keeps its session alive however long it waits."""
        member.polling = True

    def rest(self, member: Member) -> None:
        """Note that a member is not polling: from now on its session runs out."""
        loop = asyncio.get_running_loop()
        member.polling = False
        member.last_poll_s = loop.time()
        if member.timer is None and self.has(member.member_id):
            expires_s = member.last_poll_s + member.session_timeout_s
            member.timer = loop.call_at(expires_s, self._check_session, member)

    def _claim(self, member: Member) -> Claim:
        work = member.work()
        held = {place: work.get(place, 0) for place in self._assigned.get(member.member_id, ())}
        return Claim(topics=member.topics, held=held, round=self.generation)

    def _check_session(self, member: Member) -> None:
        """Eject a member whose session ran out; look again later where it polled meanwhile."""
        loop = asyncio.get_running_loop()
        member.timer = None
        if member.polling:
            return
        expires_s = member.last_poll_s + member.session_timeout_s
        if loop.time() < expires_s:
            member.timer = loop.call_at(expires_s, self._check_session, member)
            return
        self.remove(member.member_id)
