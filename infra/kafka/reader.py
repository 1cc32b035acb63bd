"""The log's reader on aiokafka: chosen partitions from chosen offsets, no group.

Owns one consumer and the positions that it was given; a consumer whose background task died is
replaced and resumes at those positions. Implements `infra.ports.LogReader`.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import aiokafka
from aiokafka import AIOKafkaConsumer
from aiokafka.client import ConnectionGroup
from aiokafka.conn import CloseReason
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from infra.errors import LogUnavailable, OffsetUnreadable
from infra.kafka.connecting import (
    CONNECT_TIMEOUT_S,
    REQUEST_TIMEOUT_MS,
    RETRY_BACKOFF_MS,
    UNREACHABLE,
    bounded,
    until_connected,
)
from infra.kafka.records import flatten
from infra.ports import Bounds, LogRecord, TopicPartition
from schemas import limits

# A fetch of all partitions answers with at most this; one bigger record comes alone.
FETCH_BYTES = 4 * limits.KAFKA_MESSAGE_BYTES_MAX
# How often an idle consumer looks around without being woken; what matters wakes it.
IDLE_TURN_MS = 1_000


class KafkaReader:
    """A LogReader for one event loop."""

    def __init__(self, bootstrap: str, *, client_id: str) -> None:
        self._bootstrap, self._client_id = bootstrap, client_id
        self._consumer: Any = None
        self._positions: dict[TopicPartition, int] = {}

    async def start(self) -> None:
        """Connect; while no broker answers, try again until cancelled."""
        self._consumer = await self._connect()

    async def bounds(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Bounds]:
        """Return the current bounds of each partition. Raises LogUnavailable."""
        asked = [aiokafka.TopicPartition(*partition) for partition in partitions]
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                starts = await self._consumer.beginning_offsets(asked)
                ends = await self._consumer.end_offsets(asked)
        except UNREACHABLE as error:
            raise LogUnavailable(f"bounds of {len(asked)} partitions: {error!r}") from error
        return {TopicPartition(*key): Bounds(starts[key], ends[key]) for key in asked}

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions from now on, each from the given offset."""
        self._positions = dict(positions)
        self._apply()

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that `poll` has not returned yet."""
        return self._positions[partition]

    async def poll(self, *, timeout_ms: int, max_records: int) -> Sequence[LogRecord]:
        """Return the next records; see `infra.ports.LogReader.poll`."""
        if not self._positions:
            # Without an assignment aiokafka would wait for one, however long.
            await asyncio.sleep(timeout_ms / 1_000)
            return ()
        if self._consumer._fetcher.error_future.done():
            await self._replace()
        try:
            # Safe to cancel: records leave its buffer in the very step in which it returns them.
            fetched = await self._consumer.getmany(timeout_ms=timeout_ms, max_records=max_records)
        except OffsetOutOfRangeError as error:
            ((partition, offset),) = error.args[0].items()
            raise OffsetUnreadable(partition.topic, partition.partition, offset) from error
        except KafkaError as error:
            raise LogUnavailable(repr(error)) from error
        records = flatten(fetched)
        for record in records:
            self._positions[TopicPartition(record.topic, record.partition)] = record.offset + 1
        return records

    async def close(self) -> None:
        """Release the connection."""
        if self._consumer is not None:
            await bounded(self._consumer.stop())

    def _make(self) -> Any:
        return AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            client_id=self._client_id,
            group_id=None,
            enable_auto_commit=False,  # belongs to no group
            auto_offset_reset="none",  # a position outside the log is an error, never a silent jump
            isolation_level="read_uncommitted",  # there are no transactions (design rule 6.12)
            check_crcs=True,
            fetch_min_bytes=1,  # return as soon as there is anything
            fetch_max_wait_ms=limits.FETCH_WAIT_MS,  # only how long an idle fetch stays open
            max_partition_fetch_bytes=limits.KAFKA_MESSAGE_BYTES_MAX,
            fetch_max_bytes=FETCH_BYTES,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            retry_backoff_ms=RETRY_BACKOFF_MS,
            consumer_timeout_ms=IDLE_TURN_MS,
            metadata_max_age_ms=300_000,
            connections_max_idle_ms=540_000,  # below the broker's 600 s: the client closes first
            security_protocol="PLAINTEXT",
        )

    async def _connect(self) -> Any:
        return await until_connected(
            self._make,
            lambda made: made.start(),
            lambda made: made.stop(),
            bootstrap=self._bootstrap,
        )

    def _apply(self) -> None:
        if self._consumer.assignment():
            cut_idle_fetches(self._consumer)
        self._consumer.assign(
            [aiokafka.TopicPartition(*partition) for partition in self._positions]
        )
        for partition, offset in self._positions.items():
            self._consumer.seek(aiokafka.TopicPartition(*partition), offset)

    async def _replace(self) -> None:
        """Go on with a new consumer where the old one's fetching task has died."""
        old = self._consumer
        await bounded(old.stop())
        self._consumer = await self._connect()
        self._apply()


def cut_idle_fetches(consumer: Any) -> None:
    """Drop the connections on which fetches of a consumer's old assignment may still be open.

    A broker answers a connection's requests in turn: the first one after a change would wait for as
    long as an idle fetch stays open.
    """
    for (_, purpose), connection in tuple(consumer._client._conns.items()):
        if purpose == ConnectionGroup.DEFAULT:
            connection.close(reason=CloseReason.IDLE_DROP)
