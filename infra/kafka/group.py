"""The log's group member on aiokafka: eager rebalances, manual commits.

Owns one consumer and the newest assignment. A poll ends as soon as a rebalance is through, so that
its caller can act on it; a consumer whose background tasks died is replaced by a new member.
Implements `infra.ports.GroupReader`.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import aiokafka
from aiokafka import AIOKafkaConsumer
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from infra.errors import CommitRefused, LogUnavailable
from infra.kafka.assignor import IdlestAssignor, Work
from infra.kafka.connecting import (
    CLOSE_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    REQUEST_TIMEOUT_MS,
    RETRY_BACKOFF_MS,
    UNREACHABLE,
    bounded,
    until_connected,
)
from infra.kafka.reader import FETCH_BYTES, IDLE_TURN_MS, cut_idle_fetches
from infra.kafka.records import flatten
from infra.ports import Assignment, LogRecord, TopicPartition
from schemas import limits

# A member whose loop has not polled for this long is as good as dead; a step takes at most 0.5 s.
POLL_INTERVAL_MS = 2 * limits.ENGINE_STALL_MS

# aiokafka's own time-out does not count while it waits for an assignment.
REBALANCE_GRACE_S = 0.05

_NOTHING = Assignment(0, frozenset())


class KafkaGroupReader:
    """A GroupReader for one event loop."""

    def __init__(
        self,
        bootstrap: str,
        *,
        group: str,
        client_id: str,
        session_timeout_ms: int,
        heartbeat_ms: int,
        rebalance_timeout_ms: int,
        on_joined: Callable[[str], None] = lambda member_id: None,
    ) -> None:
        """Take the group's settings.

        Args:
            on_joined: Called with this member's id after each rebalance.
        """
        self._bootstrap, self._group, self._client_id = bootstrap, group, client_id
        self._session_timeout_ms, self._heartbeat_ms = session_timeout_ms, heartbeat_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._work: Work = dict
        # It outlives the consumer: what a replaced one held is still what we work on.
        self._assignor = IdlestAssignor(lambda: self._work())
        self._on_joined = on_joined
        self._consumer: Any = None
        self._topics: tuple[str, ...] = ()
        self._assignment = _NOTHING
        self._waiting: asyncio.Timeout | None = None
        """The bound of the poll under way; a rebalance pulls it in."""

    async def start(self) -> None:
        """Connect; while no broker answers, try again until cancelled."""
        self._consumer = await self._connect()

    async def join(self, topics: Collection[str], *, work: Work = dict) -> None:
        """Subscribe to `topics` and take part in the group; the assignment comes later."""
        self._topics, self._work = tuple(topics), work
        self._subscribe()

    def assignment(self) -> Assignment:
        """Return the newest assignment noted."""
        return self._assignment

    def member_id(self) -> str | None:
        """Return this member's id in the group, or None before it joined."""
        if self._consumer is None:
            return None
        return self._consumer._coordinator.member_id or None

    async def poll(self, *, timeout_ms: int, max_records: int) -> Sequence[LogRecord]:
        """Return the next records, or nothing as soon as a rebalance is through; see the port."""
        if self._is_dead():
            await self._replace()
        try:
            # Safe to cut short: records leave aiokafka's buffer in the very step that returns them.
            async with asyncio.timeout(timeout_ms / 1_000 + REBALANCE_GRACE_S) as self._waiting:
                fetched = await self._consumer.getmany(
                    timeout_ms=timeout_ms, max_records=max_records
                )
        except TimeoutError:
            return ()  # a rebalance is going on, or has just ended
        except KafkaError as error:
            raise LogUnavailable(f"group {self._group}: {error!r}") from error
        finally:
            self._waiting = None
            self._note_poll()
        return flatten(fetched)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Make `offset` the next one read. Ignored where the partition is not assigned any more."""
        try:
            self._consumer.seek(aiokafka.TopicPartition(*partition), offset)
        except IllegalStateError:
            return  # lost meanwhile

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return no records of these until resumed or reassigned."""
        for partition in partitions:
            try:
                self._consumer.pause(aiokafka.TopicPartition(*partition))
            except IllegalStateError:
                continue  # lost meanwhile

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Undo `pause`."""
        for partition in partitions:
            try:
                self._consumer.resume(aiokafka.TopicPartition(*partition))
            except IllegalStateError:
                continue  # lost meanwhile

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return committed next-offsets, where there are any. Raises LogUnavailable."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                found = await asyncio.gather(
                    *(self._consumer.committed(aiokafka.TopicPartition(*one)) for one in partitions)
                )
        except UNREACHABLE as error:
            raise LogUnavailable(f"committed offsets of {self._group}: {error!r}") from error
        return {
            partition: offset
            for partition, offset in zip(partitions, found, strict=True)
            if offset is not None
        }

    async def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """Commit next-offsets in this member's name; see `infra.ports.GroupReader.commit`."""
        offsets = {aiokafka.TopicPartition(*one): offset for one, offset in next_offsets.items()}
        epoch = self._assignment.epoch
        if self._rebalancing():
            # Between JoinGroup and SyncGroup aiokafka has the new generation but the old
            # assignment: the broker would take a commit of a partition that has moved on.
            raise CommitRefused(f"group {self._group} is rebalancing")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._consumer.commit(offsets)
        except (CommitFailedError, IllegalStateError) as error:
            raise CommitRefused(f"group {self._group}: {error}") from error
        except UNREACHABLE as error:
            raise LogUnavailable(f"commit in group {self._group}: {error!r}") from error
        if self._rebalancing() or epoch != self._assignment.epoch:
            raise LogUnavailable(f"group {self._group} rebalanced during the commit")

    async def leave(self) -> None:
        """Leave the group at once, so that others need not wait for the time-out; then close."""
        if self._consumer is not None:
            await self._stop(self._consumer)

    def _rebalancing(self) -> bool:
        return bool(self._consumer._subscription.reassignment_in_progress)

    def _is_dead(self) -> bool:
        """Return whether a background task of the consumer ended, which aiokafka never mends."""
        consumer = self._consumer
        return bool(
            consumer._coordinator._coordination_task.done() or consumer._fetcher.error_future.done()
        )

    async def _replace(self) -> None:
        """Go on as a new member."""
        await self._stop(self._consumer)
        self._consumer = await self._connect()
        if self._topics:
            self._subscribe()

    def _subscribe(self) -> None:
        self._consumer.subscribe(self._topics, listener=_Noting(self._note))

    def _note(self, partitions: frozenset[TopicPartition]) -> None:
        self._assignment = Assignment(self._assignment.epoch + 1, partitions)
        cut_idle_fetches(self._consumer)
        self._on_joined(self.member_id() or "")
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())  # wakes the poll
            self._waiting = None

    def _note_poll(self) -> None:
        """Tell aiokafka that a poll ended: it forgets to note one that was cut short.

        Otherwise it would take this member for polling for ever and never eject it.
        """
        subscription = self._consumer._subscription
        if subscription._fetch_count:
            subscription._fetch_count = 0
            with subscription.fetch_context():
                pass

    async def _stop(self, consumer: Any) -> None:
        if not await bounded(consumer.stop(), CLOSE_TIMEOUT_S):
            # Cut short while it waited for the broker: what it left open has to be closed still.
            consumer._coordinator._coordination_task.cancel()
            await bounded(consumer._fetcher.close())
            await bounded(consumer._client.close())

    def _make(self) -> Any:
        return AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            client_id=self._client_id,
            group_id=self._group,
            group_instance_id=None,  # static membership would keep a dead worker's lanes
            partition_assignment_strategy=(self._assignor,),
            session_timeout_ms=self._session_timeout_ms,
            heartbeat_interval_ms=self._heartbeat_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            max_poll_interval_ms=POLL_INTERVAL_MS,
            enable_auto_commit=False,  # only what is finished is committed (design rule 6.5)
            auto_offset_reset="earliest",  # no commit yet: every record is still to be served
            isolation_level="read_uncommitted",  # there are no transactions (design rule 6.12)
            check_crcs=True,
            fetch_min_bytes=1,  # return as soon as there is anything
            fetch_max_wait_ms=limits.FETCH_WAIT_MS,  # only how long an idle fetch stays open
            max_partition_fetch_bytes=limits.KAFKA_MESSAGE_BYTES_MAX,
            fetch_max_bytes=FETCH_BYTES,
            # JoinGroup waits on the broker for the slowest member.
            request_timeout_ms=REQUEST_TIMEOUT_MS + self._rebalance_timeout_ms,
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


class _Noting(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka ships no types
    """Notes the newest assignment and no more: work in a callback would hold up the group."""

    def __init__(self, note: Any) -> None:
        self._note = note

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Do nothing: lanes are lost by assignment only (design rule 6.3)."""

    def on_partitions_assigned(self, assigned: Any) -> None:
        """Note it."""
        self._note(frozenset(TopicPartition(*one) for one in assigned))
