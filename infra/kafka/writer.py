"""The log's writer on aiokafka: idempotent, acknowledged by all replicas, bounded in time.

Owns one producer at a time. Whatever casts doubt on a producer (a time-out, a gap in its sequence
numbers, an error that aiokafka does not get over by itself) ends it: its unacknowledged sends raise
SendUnknown and a new one is built in the background, while later sends wait for it within their own
bound. Implements `infra.ports.LogWriter`.
"""

import asyncio
from asyncio import Future
from collections.abc import Sequence
from functools import partial
from typing import Any

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
)

from infra.errors import SendRefused, SendUnknown
from infra.kafka.connecting import (
    CLOSE_TIMEOUT_S,
    RETRY_BACKOFF_MS,
    bounded,
    until_connected,
)
from infra.kafka.patience import within
from infra.ports import Appended
from schemas import limits

# A topic just made may not have reached the broker that we ask.
UNKNOWN_TOPIC_WAIT_S = 1.0
# One batch per partition waits behind the one in flight; more makes `enqueue` wait. Below the
# 1,048,588 bytes that brokers take by default.
BATCH_BYTES = 512 * limits.KIB
# Room for the batch's header (61 bytes) and the record's own fields: what we let through, the
# broker must take, since a refused batch leaves a gap in the sequence numbers.
RECORD_BYTES_MAX = limits.KAFKA_MESSAGE_BYTES_MAX - limits.KIB

_REFUSED = (
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    InvalidTopicError,
    TopicAuthorizationFailedError,
)


class KafkaWriter:
    """A LogWriter for one event loop."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str,
        linger_ms: int = 0,
        send_timeout_ms: int = limits.SEND_TIMEOUT_MS,
    ) -> None:
        self._bootstrap, self._client_id, self._linger_ms = bootstrap, client_id, linger_ms
        self._send_timeout_s = send_timeout_ms / 1_000
        self._producer: Any = None
        self._usable = asyncio.Event()
        self._turn = (
            asyncio.Lock()
        )  # fair: keeps the order of `enqueue` calls while some of them wait
        self._known: set[tuple[str, int]] = set()
        # In order of sending, so in order of deadline: all have the same time-out.
        self._pending: dict[Future[Appended], float] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Connect; while no broker answers, try again until cancelled."""
        self._producer = await self._connect()
        self._usable.set()

    async def enqueue(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> "Future[Appended]":
        """Queue a record; see `infra.ports.LogWriter.enqueue`."""
        loop = asyncio.get_running_loop()
        outer: Future[Appended] = loop.create_future()
        deadline = loop.time() + self._send_timeout_s
        try:
            producer, inner = await within(
                deadline, self._queue(topic, partition, value, key, headers)
            )
        except MessageSizeTooLargeError as error:
            raise SendRefused(f"{topic}-{partition}: {error}") from error
        except TimeoutError:
            _fail(
                outer, SendUnknown(f"{topic}-{partition}: not sent in {self._send_timeout_s:g} s")
            )
            return outer
        except KafkaError as error:
            _fail(outer, SendUnknown(f"{topic}-{partition}: {error!r}"))
            return outer
        self._pending[outer] = deadline
        inner.add_done_callback(partial(self._settle, outer, producer))
        if producer is not self._producer:
            # It came into doubt while this record waited for room in it.
            self._pending.pop(outer)
            _fail(outer, SendUnknown(f"{topic}-{partition}: the producer was replaced"))
        elif self._alarm is None:
            self._alarm = loop.call_at(deadline, self._ring)
        return outer

    async def _queue(
        self,
        topic: str,
        partition: int,
        value: bytes,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes]],
    ) -> tuple[Any, "Future[Any]"]:
        """Queue a record in turn; return the producer and its future."""
        async with self._turn:
            producer = await self._ready_for(topic, partition)
            try:
                return producer, await producer.send(
                    topic, value, key=key, partition=partition, headers=list(headers)
                )
            except MessageSizeTooLargeError:
                raise
            except KafkaError as error:
                self._doubt(producer, error)
                raise

    async def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> Appended:
        """Append one record and wait for its acknowledgement; see `infra.ports.LogWriter.send`."""
        return await (await self.enqueue(topic, partition, value, key=key, headers=headers))

    async def close(self) -> None:
        """Flush within a bound and release the connection; see `infra.ports.LogWriter.close`."""
        if self._closed:
            return
        self._closed = True
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])
        producer, self._producer = self._producer, None
        self._usable.set()  # who waits for a producer learns that there will be none
        if self._pending:
            await asyncio.wait(list(self._pending), timeout=self._send_timeout_s)
        self._give_up("the writer was closed")
        if producer is not None:
            await _release(producer)

    def _make(self) -> Any:
        return AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            client_id=self._client_id,
            acks="all",  # an acknowledged record must survive the loss of a broker
            enable_idempotence=True,  # aiokafka's own retries must neither double nor reorder
            linger_ms=self._linger_ms,  # 0: what waits behind a request is batched anyway
            max_batch_size=BATCH_BYTES,
            max_request_size=RECORD_BYTES_MAX,  # aiokafka checks each record against it
            compression_type=None,  # token ids hardly compress, and it costs the loop's time
            request_timeout_ms=int(
                1_000 * self._send_timeout_s
            ),  # longer would outlive the send's own bound
            retry_backoff_ms=RETRY_BACKOFF_MS,
            metadata_max_age_ms=300_000,  # leaders that move are noticed by errors, not by age
            connections_max_idle_ms=540_000,  # below the broker's 600 s: the client closes first
            security_protocol="PLAINTEXT",
        )

    async def _connect(self) -> Any:
        return await until_connected(
            self._make, lambda made: made.start(), _release, bootstrap=self._bootstrap
        )

    async def _ready_for(self, topic: str, partition: int) -> Any:
        """Return the producer once there is one that knows the partition. Raises SendRefused."""
        await self._usable.wait()
        if self._producer is None:
            raise SendRefused("the writer is closed")
        if (topic, partition) not in self._known:
            await self._learn(self._producer, topic, partition)
            self._known.add((topic, partition))
        return self._producer

    async def _learn(self, producer: Any, topic: str, partition: int) -> None:
        client = producer.client
        client.add_topic(topic)
        asked_at = asyncio.get_running_loop().time()
        while True:
            # False while no broker answers; then there is nothing to conclude.
            answered = await client.force_metadata_update()
            partitions = client.cluster.partitions_for_topic(topic)
            if partitions is not None and partition in partitions:
                return
            waited_s = asyncio.get_running_loop().time() - asked_at
            if answered and (partitions is not None or waited_s > UNKNOWN_TOPIC_WAIT_S):
                raise SendRefused(f"there is no partition {topic}-{partition}")
            await asyncio.sleep(RETRY_BACKOFF_MS / 1_000)

    def _settle(self, outer: "Future[Appended]", producer: Any, inner: "Future[Any]") -> None:
        """Pass aiokafka's outcome on to our future."""
        error = SendUnknown("cancelled") if inner.cancelled() else inner.exception()
        if self._pending.pop(outer, None) is None:
            return  # given up before, as unknown
        if error is None:
            if not outer.done():
                metadata = inner.result()
                outer.set_result(Appended(metadata.offset, metadata.timestamp))
        elif isinstance(error, _REFUSED):
            _fail(outer, SendRefused(str(error)))
            self._doubt(producer, error)
        else:
            _fail(outer, SendUnknown(repr(error)))
            self._doubt(producer, error)

    def _ring(self) -> None:
        """Look at the oldest send in flight; past its deadline, its producer is in doubt."""
        self._alarm = None
        oldest = next(iter(self._pending.values()), None)
        if oldest is None:
            return
        loop = asyncio.get_running_loop()
        if oldest <= loop.time():
            self._doubt(self._producer, TimeoutError("no acknowledgement in time"))
        else:
            self._alarm = loop.call_at(oldest, self._ring)

    def _doubt(self, producer: Any, error: BaseException) -> None:
        """Replace `producer`, once; all that it has not acknowledged is unknown from here on."""
        if producer is None or producer is not self._producer or self._closed:
            return
        self._producer = None
        self._usable.clear()
        self._known.clear()
        structlog.get_logger("infra.kafka").warning(
            "kafka_writer_renewed",
            client_id=self._client_id,
            unknown_sends=len(self._pending),
            error=repr(error),
        )
        self._give_up(repr(error))
        self._renewal = asyncio.create_task(self._renew(producer), name=f"renew {self._client_id}")

    async def _renew(self, old: Any) -> None:
        await _release(old)
        self._producer = await self._connect()
        self._usable.set()

    def _give_up(self, reason: str) -> None:
        pending, self._pending = self._pending, {}
        for outer in pending:
            _fail(outer, SendUnknown(reason))


def _fail(outer: "Future[Appended]", error: Exception) -> None:
    if not outer.done():
        outer.set_exception(error)
        outer.exception()  # taken: a future that nobody awaits must not be reported


async def _release(producer: Any) -> None:
    """Close a producer whose sends are all settled or given up, in bounded time.

    `stop()` alone may wait for ever: an idempotent producer retries without end while its broker is
    away.
    """
    stopping = asyncio.ensure_future(producer.stop())
    await asyncio.sleep(0)  # let it mark itself closed
    sender = producer._sender.sender_task
    for _ in range(10):
        # Each cancel ends one request in flight, on which the sender's own clean-up waits.
        if sender is None or sender.done():
            break
        sender.cancel()
        await asyncio.wait([sender], timeout=CLOSE_TIMEOUT_S / 10)
    # What the flush inside `stop()` waits for.
    producer._message_accumulator.fail_all(KafkaError("the producer was closed"))
    await bounded(stopping)
