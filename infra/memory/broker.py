"""The memory log's broker: topics, groups and the makers of writers and readers.

Product code, and what the simulator runs on: one event loop, no threads, no time but the loop's
timers and the clock passed in, every order decided by the order of calls.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from infra.errors import LogError, LogUnavailable
from infra.memory.admin import MemoryAdmin
from infra.memory.faults import FaultPlan, NoFaults
from infra.memory.group import Group
from infra.memory.group_reader import MemoryGroupReader
from infra.memory.partition import PartitionLog
from infra.memory.reader import MemoryReader
from infra.memory.writer import MemoryWriter
from infra.ports import Clock, TopicPartition
from schemas import limits

SESSION_TIMEOUT_MS = 10_000
"""How long a group member may go without polling, unless its maker says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic: its partitions and explicit settings."""

    partitions: tuple[PartitionLog, ...]
    config: dict[str, str]


class MemoryBroker:
    """A partitioned log in memory."""

    def __init__(self, clock: Clock, faults: FaultPlan | None = None) -> None:
        self._clock = clock
        self._members_made = 0
        self.faults: FaultPlan = NoFaults() if faults is None else faults
        self.fired: Counter[str] = Counter()
        """How often each fault struck, by `<send|poll|commit>.<kind>`."""
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}

    def writer(
        self,
        name: str = "",
        *,
        idempotent: bool = True,
        send_timeout_ms: int = limits.SEND_TIMEOUT_MS,
    ) -> MemoryWriter:
        """Make a writer; one that is not idempotent may have its records doubled by a fault."""
        return MemoryWriter(self, name=name, idempotent=idempotent, send_timeout_ms=send_timeout_ms)

    def reader(self, name: str = "") -> MemoryReader:
        """Make a reader outside groups."""
        return MemoryReader(self, name)

    def group_reader(
        self, group: str, member: str = "", *, session_timeout_ms: int = SESSION_TIMEOUT_MS
    ) -> MemoryGroupReader:
        """Make a reader that can join `group`; `member` names it in its member ids."""
        return MemoryGroupReader(
            self,
            self._group(group),
            group_name=group,
            name=member,
            session_timeout_ms=session_timeout_ms,
        )

    def admin(self) -> MemoryAdmin:
        """Make an admin."""
        return MemoryAdmin(self)

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic; groups that wait for it get it.

        Raises: LogError where it exists with another number of partitions.
        """
        if name in self.topics:
            if len(self.topics[name].partitions) != partitions:
                raise LogError(f"topic {name} exists with another number of partitions")
            return
        places = [TopicPartition(name, index) for index in range(partitions)]
        logs = tuple(PartitionLog(place, self._clock) for place in places)
        self.topics[name] = Topic(partitions=logs, config=dict(config))
        for group in self.groups.values():
            if group.subscribes(name):
                group.rebalance()

    def topic(self, name: str) -> Topic:
        """Return a topic. Raises LogError where there is none."""
        if name not in self.topics:
            raise LogError(f"no topic {name}")
        return self.topics[name]

    def partition(self, place: TopicPartition) -> PartitionLog:
        """Return a partition's log. Raises LogUnavailable where there is none."""
        topic = self.topics.get(place.topic)
        if topic is None or not 0 <= place.partition < len(topic.partitions):
            raise LogUnavailable(f"no partition {place.topic}-{place.partition}")
        return topic.partitions[place.partition]

    def truncate(self, place: TopicPartition, start: int) -> None:
        """Drop records below `start`, as retention does."""
        self.partition(place).truncate(start)

    def rebalance(self, group: str, *, scatter: bool = False) -> None:
        """Force a rebalance of a group."""
        self._group(group).rebalance(scatter=scatter)

    def eject(self, group: str, member_id: str) -> bool:
        """Leave in a member's name, as a death notice does; tell whether it was still in."""
        return self._group(group).remove(member_id)

    def new_member_id(self, name: str) -> str:
        """Return a member id never given before."""
        self._members_made += 1
        return f"{name}-{self._members_made}"

    def _group(self, name: str) -> Group:
        if name not in self.groups:
            self.groups[name] = Group(self._all_partitions)
        return self.groups[name]

    def _all_partitions(self) -> list[TopicPartition]:
        return [log.place for topic in self.topics.values() for log in topic.partitions]
