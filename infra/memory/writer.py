"""The memory log's writer. Implements `infra.ports.LogWriter`.

Owns the way of a record to its partition: order, time bounds, what a send's fate comes to. Like a
real producer it has one record in flight for each partition; when one fails, the records queued
behind it fail with it and the partition starts afresh (a new producer), while what was in the
network may still land.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from infra.errors import LogUnavailable, SendRefused, SendUnknown
from infra.memory.faults import DELIVER, SendFate
from infra.memory.partition import PartitionLog
from infra.ports import Appended, TopicPartition
from schemas import limits

if TYPE_CHECKING:
    from infra.memory.broker import MemoryBroker

BUFFERED_RECORDS_MAX = 1_024
"""How many unacknowledged records a writer holds before `enqueue` waits."""

Headers = tuple[tuple[str, bytes], ...]


@dataclass(slots=True, eq=False)
class _Send:
    """One record on its way."""

    partition: PartitionLog
    key: bytes | None
    value: bytes
    headers: Headers
    fate: SendFate
    future: "asyncio.Future[Appended]"
    bound_s: float
    bound: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class _Lane:
    """A writer's way to one partition, emptied when a send fails."""

    in_flight: _Send | None = None
    queued: deque[_Send] = field(default_factory=deque)

    def unfinished(self) -> list[_Send]:
        """Return what is not acknowledged yet, oldest first."""
        return [*([] if self.in_flight is None else [self.in_flight]), *self.queued]


class MemoryWriter:
    """Appends records in order, within a time bound each."""

    def __init__(
        self, broker: "MemoryBroker", *, name: str, idempotent: bool, send_timeout_ms: int
    ) -> None:
        self.name = name
        self._broker = broker
        self._idempotent = idempotent
        self._send_timeout_s = send_timeout_ms / 1000
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._room = asyncio.Semaphore(BUFFERED_RECORDS_MAX)
        self._closed = False

    async def enqueue(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> "asyncio.Future[Appended]":
        """Queue a record; return a future of its acknowledgement. Raises SendRefused."""
        log = self._accept(TopicPartition(topic, partition), value, key, headers)
        loop = asyncio.get_running_loop()
        bound_s = loop.time() + self._send_timeout_s
        future: asyncio.Future[Appended] = loop.create_future()
        await self._room.acquire()  # frees within the bounds of those that fill it
        if self._closed:
            self._room.release()
            # Give way first, so that a loop that retries at once cannot starve the others.
            await asyncio.sleep(0)
            _fail(future)
            return future
        fate = self._broker.faults.send(self.name, log.place, value)
        lane = self._lanes.get(log.place)
        if lane is None:
            lane = self._lanes[log.place] = _Lane()
        if lane.in_flight is None and fate is DELIVER:
            # The common case: it lands now; its acknowledgement takes a turn of the loop.
            self._room.release()
            loop.call_soon(_acknowledge, future, log.append(key, value, tuple(headers)))
            return future
        send = _Send(log, key, value, tuple(headers), fate, future, bound_s)
        send.bound = loop.call_at(bound_s, self._break, lane)
        lane.queued.append(send)
        self._advance(lane)
        return future

    async def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> Appended:
        """Append one record and wait for its acknowledgement. Raises SendRefused, SendUnknown."""
        return await (await self.enqueue(topic, partition, value, key=key, headers=headers))

    async def close(self) -> None:
        """Flush within the bound of a send; what is unacknowledged then raises SendUnknown."""
        self._closed = True
        lanes = self._lanes.values()
        waiting = [send.future for lane in lanes for send in lane.unfinished()]
        if waiting:
            await asyncio.wait(waiting)  # each within its bound
        await asyncio.sleep(0)  # acknowledgements under way take a turn of the loop
        self.kill()

    def kill(self) -> None:
        """Die: nothing more is sent, but what is in the network still lands."""
        self._closed = True
        for lane in self._lanes.values():
            self._break(lane)

    def _accept(
        self,
        place: TopicPartition,
        value: bytes,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes]],
    ) -> PartitionLog:
        """Return the record's partition. Raises SendRefused where it can never be appended."""
        size_bytes = len(value) + len(key or b"")
        for name, content in headers:
            size_bytes += len(name.encode()) + len(content)
        if size_bytes > limits.KAFKA_MESSAGE_BYTES_MAX:
            raise SendRefused(f"a record of {size_bytes} bytes is too large for {place.topic}")
        try:
            return self._broker.partition(place)
        except LogUnavailable as error:
            raise SendRefused(str(error)) from error

    def _advance(self, lane: _Lane) -> None:
        """Put queued records in flight, one after the other, until one takes time."""
        loop = asyncio.get_running_loop()
        while lane.in_flight is None and lane.queued:
            send = lane.in_flight = lane.queued.popleft()
            fate = send.fate
            if fate.kind not in ("deliver", "duplicate"):
                self._broker.fired[f"send.{fate.kind}"] += 1
            if fate.kind in ("lose", "late"):
                continue  # its bound breaks the lane
            if fate.land_ms:
                loop.call_later(fate.land_ms / 1000, self._land_in_flight, lane, send)
            else:
                self._land_in_flight(lane, send)

    def _land_in_flight(self, lane: _Lane, send: _Send) -> None:
        loop = asyncio.get_running_loop()
        appended = _land(send)
        fate = send.fate
        if fate.kind == "duplicate" and not self._idempotent:
            self._broker.fired["send.duplicate"] += 1
            loop.call_later(fate.late_ms / 1000, _land, send)
        if fate.land_ms or fate.ack_ms:
            self._broker.fired["send.delay"] += 1
        if fate.kind != "ack_lost":
            loop.call_later(fate.ack_ms / 1000, self._finish, lane, send, appended)

    def _finish(self, lane: _Lane, send: _Send, appended: Appended) -> None:
        """Acknowledge the record in flight; no effect where its lane was broken meanwhile."""
        if lane.in_flight is not send:
            return
        lane.in_flight = None
        self._release(send)
        _acknowledge(send.future, appended)
        self._advance(lane)

    def _break(self, lane: _Lane) -> None:
        """Give up a lane: its records' outcome is unknown; only what was in the network lands."""
        loop = asyncio.get_running_loop()
        for send in lane.unfinished():
            if send is not lane.in_flight:
                self._broker.fired["send.collateral"] += 1
            if send.fate.kind == "late":
                landing_s = max(loop.time(), send.bound_s) + send.fate.late_ms / 1000
                loop.call_at(landing_s, _land, send)
            self._release(send)
            _fail(send.future)
        lane.in_flight = None
        lane.queued.clear()

    def _release(self, send: _Send) -> None:
        if send.bound is not None:
            send.bound.cancel()
        self._room.release()


def _land(send: _Send) -> Appended:
    return send.partition.append(send.key, send.value, send.headers)


def _acknowledge(future: "asyncio.Future[Appended]", appended: Appended) -> None:
    if not future.done():
        future.set_result(appended)


def _fail(future: "asyncio.Future[Appended]") -> None:
    if not future.done():
        future.set_exception(SendUnknown("the record may or may not land"))
        future.exception()  # marks it as seen: callers may drop the future
