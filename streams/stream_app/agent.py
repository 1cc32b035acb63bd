"""Handles one usage record: fold it into the tables, note the writes, offer the total.

The shell around `totals.py` without Faust: the tables are mappings of bytes, and what a write to
them sends is taken from `take_writes`. Called by the Faust agent in `app.py`, one record at a time:
nothing else may run between reading an entry and writing it.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.dead_letters import DeadLetters
from infra.metrics import Metrics
from infra.ports import LogRecord
from schemas.codec import Undecodable, decode
from schemas.usage import UsageRecorded
from streams.stream_app import entries
from streams.stream_app.confirmations import Confirmations
from streams.stream_app.expiry import SeenExpiry
from streams.stream_app.publisher import TotalsPublisher
from streams.stream_app.totals import fold_usage, published

_BURY_AGAIN_S = 1.0

Table = MutableMapping[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTables:
    """The two tables, and the changelog writes that changing them has caused since last asked."""

    totals: Table
    seen: Table
    take_writes: Callable[[], Sequence[Future[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDeps:
    """What the agent works with."""

    confirmations: Confirmations
    expiry: SeenExpiry
    publisher: TotalsPublisher
    dead_letters: DeadLetters
    metrics: Metrics


class UsageAgent:
    """Keeps usage totals per org."""

    def __init__(self, deps: AgentDeps, tables: UsageTables) -> None:
        self._deps = deps
        self._tables = tables

    async def handle(self, record: LogRecord) -> None:
        """Take one record of `usage.v1`; a poison one is dead-lettered first.

        Raises: DeliveryGap; LogError where a dead letter could not be written. The record must not
        be committed then.
        """
        self._deps.confirmations.expect(record.partition, record.offset)
        self._deps.metrics.count("log_records_read", topic=record.topic)
        try:
            usage = decode(record.value, UsageRecorded)
        except Undecodable as error:
            await self._bury(record, str(error))
        else:
            self._fold(usage, record)
        self._sweep(record.partition)
        self._deps.confirmations.add(
            record.partition, record.offset, record.append_time_ms, self._tables.take_writes()
        )

    def recovered(self) -> None:
        """Rebuild what is kept beside the tables, and offer every total to readers."""
        seen = []
        for key, value in self._tables.seen.items():
            entry = entries.unpack_seen(value)
            if entry is not None:
                seen.append((entries.key_parts(key)[0], entry.append_time_ms, key))
        self._deps.expiry.rebuild(seen)
        for key, value in self._tables.totals.items():
            partition, org = entries.key_parts(key)
            total = entries.unpack_total(value)
            if total is not None:
                self._deps.publisher.offer(published(org, partition, total))

    async def _bury(self, record: LogRecord, reason: str) -> None:
        """Bury a record, waiting while dead letters are over their limit: none is passed over."""
        while not await self._deps.dead_letters.bury(record, reason):  # noqa: ASYNC110  # a clock's limit
            await asyncio.sleep(_BURY_AGAIN_S)

    def _fold(self, usage: UsageRecorded, record: LogRecord) -> None:
        org_key = entries.entry_key(record.partition, usage.org)
        seen_key = entries.entry_key(record.partition, usage.request_id)
        seen = entries.unpack_seen(self._tables.seen.get(seen_key))
        folded = fold_usage(
            entries.unpack_total(self._tables.totals.get(org_key)),
            seen.offset if seen else None,
            usage,
            record.partition,
            record.offset,
        )
        if seen is None or folded.seen_offset < seen.offset:
            first = entries.Seen(folded.seen_offset, record.append_time_ms)
            self._tables.seen[seen_key] = entries.pack_seen(first)
            self._deps.expiry.add(record.partition, seen_key)
        if folded.publish is None or folded.total is None:
            self._deps.metrics.count("usage_events_skipped")
            return
        self._tables.totals[org_key] = entries.pack_total(folded.total)
        self._deps.publisher.offer(folded.publish)
        self._deps.metrics.count("usage_events_counted")

    def _sweep(self, partition: int) -> None:
        committed_at_ms = self._deps.confirmations.committed_at_ms(partition)
        for key in self._deps.expiry.due(partition, committed_at_ms, self._appended_at_ms):
            if key in self._tables.seen:
                del self._tables.seen[key]

    def _appended_at_ms(self, seen_key: bytes) -> int | None:
        seen = entries.unpack_seen(self._tables.seen.get(seen_key))
        return None if seen is None else seen.append_time_ms
