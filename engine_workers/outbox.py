"""What this worker says on `replies.v1`: facts in order, one record per turn and partition.

All starts, deltas and closes of a worker pass here, so that their order per partition is the order
in which they were decided. Owns batching and encoding; what a failed send means is the worker's
business (design rule 6.3).
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from engine_workers.echoes import Echoes
from infra.errors import LogError
from infra.ports import Appended, LogWriter
from schemas import limits
from schemas.codec import encode
from schemas.replies import (
    BOUNDARY_HEADER,
    Closed,
    Delta,
    ReplyRecord,
    Start,
    entry_of,
    is_boundary,
)
from schemas.reply_size import size_of
from schemas.topics import REPLIES

Fact = Start | Delta | Closed


class Outbox:
    """Gathers facts while a send is being queued, then sends them as one record per partition."""

    def __init__(
        self,
        writer: LogWriter,
        on_failed: Callable[[Sequence[Fact], LogError], None],
        echoes: Echoes,
    ) -> None:
        self._writer = writer
        self._on_failed = on_failed
        self._echoes = echoes
        self._waiting: list[tuple[int, Fact]] = []
        self._last_deltas: dict[str, dict[int, int]] = {}
        """By request id and choice, where in `_waiting` its newest delta stands; none from before
        the request's newest start or close."""
        self._on_sent: list[Callable[[], None]] = []
        self._wake = asyncio.Event()
        self.records = 0
        """Records sent so far; a figure for metrics."""

    def put(self, partition: int, fact: Fact) -> None:
        """Queue a fact; the caller bounds how many can be waiting (credits, jobs in flight).

        A delta that goes on where a waiting one of its reply ends is joined to it: steps that pile
        up cost one entry, not one each.
        """
        self._wake.set()
        if not isinstance(fact, Delta):
            self._last_deltas.pop(fact.request_id, None)
            self._waiting.append((partition, fact))
            return
        places = self._last_deltas.setdefault(fact.request_id, {})
        place = places.get(fact.choice)
        # A terminal stands behind the last deltas of all other choices.
        if place is not None and (fact.terminal is None or place == max(places.values())):
            joined = _joined(self._waiting[place][1], fact)
            if joined is not None:
                self._waiting[place] = (partition, joined)
                return
        places[fact.choice] = len(self._waiting)
        self._waiting.append((partition, fact))

    def when_sent(self, call: Callable[[], None]) -> None:
        """Call back once all that was put so far has been handed to the writer."""
        self._on_sent.append(call)
        self._wake.set()

    async def run(self) -> None:
        """Send for ever."""
        while True:
            await self.run_once()

    async def run_once(self) -> None:
        """Send what waits, one record per partition; wait where nothing does."""
        await self._wake.wait()
        self._wake.clear()
        waiting, self._waiting = self._waiting, []
        self._last_deltas.clear()
        on_sent, self._on_sent = self._on_sent, []
        by_partition: dict[int, list[Fact]] = {}
        for partition, fact in waiting:
            by_partition.setdefault(partition, []).append(fact)
        for partition, facts in by_partition.items():
            for record in _records(facts):
                await self._send(partition, record)
        for call in on_sent:
            call()

    async def _send(self, partition: int, facts: tuple[Fact, ...]) -> None:
        value = encode(ReplyRecord(entries=tuple(entry_of(fact) for fact in facts)))
        headers = ((BOUNDARY_HEADER, b"1"),) if is_boundary(facts) else ()
        self.records += 1
        self._echoes.wrote(value, facts)
        try:
            acknowledgement = await self._writer.enqueue(REPLIES, partition, value, headers=headers)
        except LogError as error:
            self._on_failed(facts, error)
            return
        acknowledgement.add_done_callback(partial(self._acknowledged, facts))

    def _acknowledged(self, facts: tuple[Fact, ...], done: "asyncio.Future[Appended]") -> None:
        if done.cancelled():
            return  # the writer is closing with this process
        error = done.exception()
        if isinstance(error, LogError):
            self._on_failed(facts, error)
        elif error is not None:
            raise error


def _joined(before: Fact, delta: Delta) -> Delta | None:
    """Return two deltas of a reply as one; None where they do not follow on each other."""
    if not isinstance(before, Delta) or before.attempt != delta.attempt:
        return None
    if (before.segment, before.choice) != (delta.segment, delta.choice):
        return None
    if before.first_index + len(before.token_ids) != delta.first_index:
        return None
    if before.stop or before.terminal or before.ends_segment:
        return None
    return replace(
        delta,
        first_index=before.first_index,
        token_ids=before.token_ids + delta.token_ids,
        cached_tokens=before.cached_tokens,
        logprobs=(before.logprobs or ()) + (delta.logprobs or ()) or None,
    )


def _records(facts: Sequence[Fact]) -> Iterator[tuple[Fact, ...]]:
    """Cut a turn's facts of one partition into records that fit an event: nearly always one."""
    record: list[Fact] = []
    held = 0
    for fact in facts:
        size = size_of(fact) if isinstance(fact, Delta) else 0
        if record and held + size > limits.EVENT_BYTES_MAX:
            yield tuple(record)
            record, held = [], 0
        record.append(fact)
        held += size
    yield tuple(record)
