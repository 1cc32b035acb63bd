"""The log's administration on aiokafka: topics, their settings, groups' offsets.

Implements `infra.ports.LogAdmin`; used by `millstream apply`, the audit and tests.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from infra.errors import LogUnavailable
from infra.kafka.connecting import (
    CONNECT_TIMEOUT_S,
    REQUEST_TIMEOUT_MS,
    RETRY_BACKOFF_MS,
    UNREACHABLE,
    bounded,
    until_connected,
)
from infra.kafka.offset_fetch import fetch_all
from infra.ports import TopicPartition

# Kafka's usual number of copies: one may be lost while another is being serviced.
COPIES_MAX = 3
# Kafka's DescribeConfigs: the value was set on this topic, not inherited.
SOURCE_TOPIC = 1


class KafkaAdmin:
    """A LogAdmin for one event loop."""

    def __init__(self, bootstrap: str, *, client_id: str = "millstream-admin") -> None:
        self._bootstrap, self._client_id = bootstrap, client_id
        self._client: Any = None

    async def start(self) -> None:
        """Connect; while no broker answers, try again until cancelled."""
        self._client = await until_connected(
            self._make,
            lambda made: made.start(),
            lambda made: made.close(),
            bootstrap=self._bootstrap,
        )

    async def brokers(self) -> int:
        """Return how many brokers of the cluster are up. Raises LogUnavailable."""
        async with _available("describe the cluster"):
            return len((await self._client.describe_cluster())["brokers"])

    async def topics(self) -> Mapping[str, int]:
        """Return partition counts by topic name. Raises LogUnavailable."""
        async with _available("list topics"):
            found = await self._client.describe_topics(None)
        return {topic["topic"]: len(topic["partitions"]) for topic in found}

    async def create(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic and wait until brokers know it; see `infra.ports.LogAdmin.create`."""
        async with _available(f"create topic {topic}"):
            copies = min(COPIES_MAX, len((await self._client.describe_cluster())["brokers"]))
            settings = dict(config)
            if copies == COPIES_MAX:  # acknowledged is what two have: any one may be lost
                settings.setdefault("min.insync.replicas", str(copies - 1))
            made = NewTopic(topic, partitions, copies, topic_configs=settings)
            answer = await self._client.create_topics([made], timeout_ms=REQUEST_TIMEOUT_MS)
            _check(answer.topic_errors, topic)
            while topic not in await self.topics():  # noqa: ASYNC110  # the broker has no event for it
                await asyncio.sleep(RETRY_BACKOFF_MS / 1_000)

    async def alter(self, topic: str, config: Mapping[str, str]) -> None:
        """Set these topic settings, leaving others. Raises LogUnavailable."""
        # AlterConfigs replaces the whole set, so the others have to be sent along.
        wanted = {**await self.settings(topic), **config}
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=wanted)
        async with _available(f"alter topic {topic}"):
            for answer in await self._client.alter_configs([resource]):
                for code, message, *_ in answer.resources:
                    if code:
                        raise for_code(code)(message)
            # The broker that answers questions applies it a moment after the controller took it.
            while await self.settings(topic) != wanted:  # noqa: ASYNC110  # nor for this
                await asyncio.sleep(RETRY_BACKOFF_MS / 1_000)

    async def settings(self, topic: str) -> Mapping[str, str]:
        """Return the settings of a topic that were set explicitly. Raises LogUnavailable."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        async with _available(f"settings of topic {topic}"):
            (answer,) = await self._client.describe_configs([resource])
            ((code, message, _kind, _name, entries, *_),) = answer.resources
            if code:
                raise for_code(code)(message)
        return {
            name: value
            for name, value, _read_only, source, *_ in entries
            if source == SOURCE_TOPIC and value is not None
        }

    async def group_offsets(self, group: str) -> Mapping[TopicPartition, int]:
        """Return a group's committed next-offsets. Raises LogUnavailable."""
        async with _available(f"offsets of group {group}"):
            while True:
                try:
                    found = await fetch_all(self._client, group)
                    break
                except KafkaError as error:
                    # The offsets topic is made by the first such question; a coordinator may move,
                    # or load.
                    if not error.retriable:
                        raise
                    await asyncio.sleep(RETRY_BACKOFF_MS / 1_000)
        return {
            TopicPartition(*partition): offset for partition, offset in found.items() if offset >= 0
        }

    async def close(self) -> None:
        """Release the connection."""
        if self._client is not None:
            await bounded(self._client.close())

    def _make(self) -> Any:
        return AIOKafkaAdminClient(
            bootstrap_servers=self._bootstrap,
            client_id=self._client_id,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            retry_backoff_ms=RETRY_BACKOFF_MS,
            security_protocol="PLAINTEXT",
        )


@asynccontextmanager
async def _available(what: str) -> AsyncIterator[None]:
    """Bound the steps inside, and give their failures the port's name."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            yield
    except UNREACHABLE as error:
        raise LogUnavailable(f"{what}: {error!r}") from error


def _check(topic_errors: Any, topic: str) -> None:
    for name, code, *message in topic_errors:
        error = for_code(code)
        if name == topic and code and error is not TopicAlreadyExistsError:
            raise error(*message)
