"""The memory log's administration. Implements `infra.ports.LogAdmin`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from infra.ports import TopicPartition

if TYPE_CHECKING:
    from infra.memory.broker import MemoryBroker


class MemoryAdmin:
    """Makes and describes topics."""

    def __init__(self, broker: "MemoryBroker") -> None:
        self._broker = broker

    async def topics(self) -> Mapping[str, int]:
        """Return partition counts by topic name."""
        return {name: len(topic.partitions) for name, topic in self._broker.topics.items()}

    async def create(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic; no effect where it exists with that many partitions."""
        self._broker.create_topic(topic, partitions, config)

    async def alter(self, topic: str, config: Mapping[str, str]) -> None:
        """Set these topic settings, leaving others."""
        self._broker.topic(topic).config.update(config)

    async def settings(self, topic: str) -> Mapping[str, str]:
        """Return the settings that were set explicitly."""
        return dict(self._broker.topic(topic).config)

    async def group_offsets(self, group: str) -> Mapping[TopicPartition, int]:
        """Return a group's committed next-offsets."""
        found = self._broker.groups.get(group)
        return {} if found is None else dict(found.commits)

    async def close(self) -> None:
        """Nothing is held."""
