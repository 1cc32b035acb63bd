"""The group protocol `idlest`: how members tell the leader of their work, and it them of theirs.

Owns the bytes on the wire and what one member remembers between rounds; who gets what is decided
by `infra/assignor.py`. One object per member, made by `infra/kafka/group.py`: aiokafka asks it as
it would ask a class.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)

from infra.assignor import Claim, assign_idlest, newest_round
from infra.ports import TopicPartition

__all__ = ["IdlestAssignor", "Work"]

Work = Callable[[], Mapping[TopicPartition, int]]
"""Returns a member's unfinished work by partition; what it does not name is idle."""

_VERSION = 0  # of the consumer protocol around our bytes


class _Said(msgspec.Struct, frozen=True, array_like=True):
    """A member's claim as it travels in its JoinGroup."""

    round: int
    held: list[tuple[str, int, int]]
    """Topic, partition, unfinished work."""


class IdlestAssignor(AbstractPartitionAssignor):  # type: ignore[misc]  # aiokafka ships no types
    """One member's side of the protocol, and the leader's where it is elected."""

    name = "idlest"

    def __init__(self, work: Work) -> None:
        self._work = work
        self._held: tuple[TopicPartition, ...] = ()
        self._round = 0

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Return what this member says when it joins: its topics, and its work as it is now."""
        work = self._work()
        held = [(place.topic, place.partition, work.get(place, 0)) for place in self._held]
        said = msgspec.msgpack.encode(_Said(self._round, held))
        return ConsumerProtocolMemberMetadata(_VERSION, sorted(topics), said)

    def assign(
        self, cluster: Any, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Return, as the leader, who gets what."""
        claims = {member: _claim(members[member]) for member in sorted(members)}
        topics = sorted({topic for claim in claims.values() for topic in claim.topics})
        partitions = [
            TopicPartition(topic, partition)
            for topic in topics
            for partition in sorted(cluster.partitions_for_topic(topic) or ())
        ]
        said = msgspec.msgpack.encode(newest_round(claims.values()))
        return {
            member: ConsumerProtocolMemberAssignment(_VERSION, _by_topic(places), said)
            for member, places in assign_idlest(partitions, claims).items()
        }

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Remember what this member holds from now on, and by which round."""
        self._held = tuple(TopicPartition(*place) for place in assignment.partitions())
        try:
            self._round = msgspec.msgpack.decode(assignment.user_data or b"", type=int)
        except msgspec.MsgspecError:
            self._round = 0


def _claim(metadata: ConsumerProtocolMemberMetadata) -> Claim:
    """Return a member's claim; what cannot be read claims nothing."""
    try:
        said = msgspec.msgpack.decode(metadata.user_data or b"", type=_Said)
    except msgspec.MsgspecError:
        return Claim(topics=tuple(metadata.subscription))
    return Claim(
        topics=tuple(metadata.subscription),
        held={TopicPartition(topic, partition): work for topic, partition, work in said.held},
        round=said.round,
    )


def _by_topic(places: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    found: dict[str, list[int]] = {}
    for place in sorted(places):
        found.setdefault(place.topic, []).append(place.partition)
    return list(found.items())
