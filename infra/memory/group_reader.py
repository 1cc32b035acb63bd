"""The memory log's group member. Implements `infra.ports.GroupReader`.

Owns what the member noted last: generation, assignment, positions. It looks at the group's newer
state only while it polls, so between polls it may act as a zombie.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from infra.errors import LogUnavailable
from infra.memory.cursors import Cursors
from infra.memory.faults import POLL, PollFate
from infra.memory.group import Group, Member, Work
from infra.memory.wakeup import Wakeup
from infra.ports import Assignment, LogRecord, TopicPartition

if TYPE_CHECKING:
    from infra.memory.broker import MemoryBroker


class MemoryGroupReader:
    """Reads as a member of a consumer group."""

    def __init__(
        self,
        broker: "MemoryBroker",
        group: Group,
        *,
        group_name: str,
        name: str,
        session_timeout_ms: int,
    ) -> None:
        self.name = name
        self._broker = broker
        self._group = group
        self._group_name = group_name
        self._session_timeout_ms = session_timeout_ms
        self._wakeup = Wakeup()
        self._cursors = Cursors(broker.partition, self._wakeup)
        self._topics: frozenset[str] = frozenset()
        self._work: Work = dict
        self._member: Member | None = None
        self._generation = 0
        self._assignment = Assignment(0, frozenset())
        self._closed = False

    async def join(self, topics: Collection[str], *, work: Work = dict) -> None:
        """Subscribe and take part; the first poll notes the first assignment."""
        await self._check_open()
        self._topics, self._work = frozenset(topics), work
        if self._member is not None:
            self._group.remove(self._member.member_id)
        self._enter()

    def assignment(self) -> Assignment:
        """Return the newest assignment noted."""
        return self._assignment

    def member_id(self) -> str | None:
        """Return this member's id, or None before it joined."""
        return None if self._member is None else self._member.member_id

    async def poll(self, *, timeout_ms: int, max_records: int) -> Sequence[LogRecord]:
        """Return the next records of the assigned, unpaused partitions; see the port."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        fate = self._broker.faults.poll(self.name, self._group_name)
        if fate is not POLL or timeout_ms <= 0 or not self._is_idle():
            await self._suffer(fate)  # gives way in any case, as a wait does
        over = loop.time() >= deadline_s
        try:
            while True:
                if self._closed:
                    await self._check_open()
                self._note_newest()
                records = self._cursors.take(max_records)
                if records or over:
                    return records
                over = await self._wakeup.sleep_until(deadline_s)
        finally:
            if self._member is not None and not self._closed:
                self._group.rest(self._member)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Make `offset` the next one read."""
        self._cursors.seek(partition, offset)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return no records of these until resumed or reassigned."""
        self._cursors.pause(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Undo `pause`."""
        self._cursors.resume(partitions)

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return committed next-offsets; a partition without one is absent."""
        await self._check_open()
        commits = self._group.commits
        return {place: commits[place] for place in partitions if place in commits}

    async def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """Commit in this member's name and noted generation; see the port."""
        await self._check_open()
        # The request names the generation of when it was sent, however long it is on its way.
        member_id, generation = self.member_id(), self._generation
        fate = self._broker.faults.commit(self.name, self._group_name)
        if fate.stall_ms:
            self._broker.fired["commit.stall"] += 1
            await asyncio.sleep(fate.stall_ms / 1000)
            await self._check_open()
        if fate.kind != "take":
            self._broker.fired[f"commit.{fate.kind}"] += 1
        if fate.kind == "stale":
            self._group.rebalance()
        if fate.kind != "lose":
            self._group.commit(member_id, generation, next_offsets)
        if fate.kind in ("lose", "ack_lost"):
            raise LogUnavailable("the commit's outcome is unknown")
        await asyncio.sleep(0)

    async def leave(self) -> None:
        """Leave the group at once, then close."""
        if self._member is not None and not self._closed:
            self._group.remove(self._member.member_id)
        self._close()

    def kill(self) -> None:
        """Die without leaving: the group finds out by the session time-out or a death notice."""
        if self._member is not None and not self._closed:
            self._group.rest(self._member)
        self._close()

    def _close(self) -> None:
        self._closed = True
        self._cursors.release()
        self._wakeup.wake()

    def _enter(self) -> None:
        self._member = Member(
            self._broker.new_member_id(self.name),
            self._topics,
            self._wakeup,
            self._session_timeout_ms,
            self._work,
        )
        self._group.add(self._member)

    def _is_idle(self) -> bool:
        """Tell whether a poll would have to wait: nothing to take, nothing new of the group."""
        member, group = self._member, self._group
        if member is None or not group.has(member.member_id):
            return False
        return self._generation == group.generation and self._cursors.idle()

    async def _suffer(self, fate: PollFate) -> None:
        """Carry out a fault, not counting as polling meanwhile. Gives way in any case."""
        if fate.stall_ms:
            self._broker.fired["poll.stall"] += 1
        await asyncio.sleep(fate.stall_ms / 1000)
        for _ in range(fate.rebalances):
            self._broker.fired["poll.rebalance"] += 1
            self._group.rebalance(scatter=fate.scatter)

    def _note_newest(self) -> None:
        """Join again if ejected; take over the newest generation, falling back to its commits."""
        if self._member is None:
            return
        if not self._group.has(self._member.member_id):
            self._enter()
        self._group.poll_begins(self._member)
        if self._generation == self._group.generation:
            return
        self._generation = self._group.generation
        partitions = self._group.assigned(self._member.member_id)
        self._assignment = Assignment(self._assignment.epoch + 1, partitions)
        self._cursors.assign(
            {
                place: self._group.commits.get(place, self._broker.partition(place).bounds().start)
                for place in sorted(partitions)
            }
        )

    async def _check_open(self) -> None:
        if self._closed:
            # Give way first, so that a loop that retries at once cannot starve the others.
            await asyncio.sleep(0)
            raise LogUnavailable(f"member {self.name} is closed")
