"""`millstream audit`: proves that replies, usage topic and ClickHouse agree, or names what does
not.

Owns the order of reading, which makes the proof sound while traffic flows: ends first (usage,
replies, requests); then the folds; then, within a bound, until the usage of all that ended is on
the log and the sink has committed past it; then the store; last whatever was metered meanwhile, so
that no row is newer than the log as read. The comparison is `audit_compare`, the reading
`audit_log`, a single request's story `audit_explain`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from infra.audit_compare import AuditReport, Difference, Kind, Stored, compare
from infra.audit_explain import explain
from infra.audit_log import (
    EncodedUsage,
    MeteredEvents,
    Ranges,
    read_range,
    read_replies,
    take_snapshot,
)
from infra.clickhouse import Address, ClickHouseUsageStore
from infra.config import Config
from infra.errors import LogUnavailable
from infra.kafka import KafkaAdmin, KafkaReader
from infra.ports import Bounds, Clock, LogAdmin, LogReader, TopicPartition, UsageStore
from infra.system import SystemClock
from schemas import limits
from schemas.ids import find_request_id

__all__ = ["AuditDeps", "AuditReport", "Difference", "Kind", "audit", "run"]

METERING_GROUP = "metering"
_LOOK_EVERY_S = 0.5
_CONNECT_WITHIN_S = 15.0
_NEVER_MS = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditDeps:
    """What an audit reads from."""

    reader: LogReader
    admin: LogAdmin
    store: UsageStore
    clock: Clock
    wait_s: float = limits.AUDIT_WAIT_S
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


def run(config: Config, request: str | None = None) -> AuditReport:
    """Audit the platform that `config` names; with `request`, explain that one too.

    Raises: InvalidId for an id that is none of ours; LogError, StoreError where either is away.
    """
    request_id = None if request is None else find_request_id(request)
    return asyncio.run(_run(config, request_id))


async def audit(deps: AuditDeps, request_id: str | None = None) -> AuditReport:
    """Audit over ports; see the module docstring. Raises LogError, StoreError."""
    snapshot = await take_snapshot(deps.admin, deps.reader)
    replies = await read_replies(deps.reader, snapshot, deps.clock)
    expected = replies.expected(snapshot.replies)
    usage = _UsageReading(deps, snapshot.usage, expected)
    await usage.until_metered()
    behind = await usage.until_stored()
    stored = Stored(
        rows=await deps.store.rows(),
        physical_count=await deps.store.physical_count(),
        disputed=await deps.store.disputed(),
    )
    await usage.read_on(row_is_due=False)
    report = compare(
        expected,
        usage.metered,
        stored,
        landed=replies.landed if snapshot.holds_all_requests else None,
        readable_from_ms=await _readable_from_ms(deps, snapshot.usage),
        unfinished=replies.unfinished(snapshot.replies),
        unreadable=replies.unreadable(snapshot.replies),
        waited_s=usage.waited_s,
        behind=behind,
    )
    if request_id is None:
        return report
    lines = await explain(request_id, deps.reader, deps.store, snapshot, deps.clock)
    return replace(report, explanation=lines)


class _UsageReading:
    """Reads `usage.v1` on and on, and waits for what must come; one time bound over all waits."""

    def __init__(self, deps: AuditDeps, ranges: Ranges, expected: EncodedUsage) -> None:
        self._deps, self._ranges, self._expected = deps, ranges, expected
        self._next = {place: bounds.start for place, bounds in ranges.items()}
        self._started_s = deps.clock.monotonic_s()
        self.metered = MeteredEvents()

    @property
    def waited_s(self) -> float:
        """Time since the waits began."""
        return self._deps.clock.monotonic_s() - self._started_s

    async def until_metered(self) -> None:
        """Read until every expected id has its usage event, or the time is over."""
        while True:
            await self.read_on(row_is_due=True)
            missing = any(request_id not in self.metered for request_id in self._expected)
            if not missing or self.waited_s >= self._deps.wait_s:
                return
            await self._deps.sleep(_LOOK_EVERY_S)

    async def until_stored(self) -> str:
        """Wait until the sink has committed past all that was read; return what is left, if
        anything.

        A row is in the store before its offset is committed, so from then on it must be found
        there.
        """
        while True:
            offsets = await self._deps.admin.group_offsets(METERING_GROUP)
            late = {
                place: (offsets.get(place, 0), wanted)
                for place, wanted in self._next.items()
                if wanted > self._ranges[place].start and offsets.get(place, 0) < wanted
            }
            if not late:
                return ""
            if self.waited_s >= self._deps.wait_s:
                return "; ".join(
                    f"partition {place.partition}: {have} of {wanted} after {self.waited_s:.0f} s"
                    for place, (have, wanted) in sorted(late.items())
                )
            await self._deps.sleep(_LOOK_EVERY_S)

    async def read_on(self, *, row_is_due: bool) -> None:
        """Read from where the last call stopped to the present ends."""
        bounds = await self._deps.reader.bounds(list(self._next))
        ranges = {
            place: Bounds(next_offset, bounds[place].end)
            for place, next_offset in self._next.items()
        }
        async for record in read_range(self._deps.reader, ranges, self._deps.clock):
            place = TopicPartition(record.topic, record.partition)
            self._next[place] = record.offset + 1
            self.metered.add(
                record,
                self._expected.encoded,
                row_is_due=row_is_due,
                request_is_due=record.offset < self._ranges[place].end,
            )


async def _readable_from_ms(deps: AuditDeps, usage: Ranges) -> int:
    """Return from which acceptance time on no usage event can have been removed by retention.

    A usage event is appended after its reply was accepted: one that is gone is older than the
    first that is left.
    """
    firsts = {
        place: Bounds(bounds.start, min(bounds.start + 1, bounds.end))
        for place, bounds in usage.items()
        if bounds.start > 0
    }
    if any(bounds.start == bounds.end for bounds in firsts.values()):
        return _NEVER_MS
    horizon_ms = 0
    async for record in read_range(deps.reader, firsts, deps.clock):
        horizon_ms = max(horizon_ms, record.append_time_ms)
    return horizon_ms


async def _run(config: Config, request_id: str | None) -> AuditReport:
    async with AsyncExitStack() as stack:
        reader = KafkaReader(config.kafka, client_id="audit")
        stack.push_async_callback(reader.close)
        admin = KafkaAdmin(config.kafka)
        stack.push_async_callback(admin.close)
        try:
            async with asyncio.timeout(_CONNECT_WITHIN_S):
                await reader.start()
                await admin.start()
        except TimeoutError:
            raise LogUnavailable(
                f"no Kafka at {config.kafka} within {_CONNECT_WITHIN_S:g} s: is the platform up?"
            ) from None
        store = ClickHouseUsageStore(
            Address(
                url=config.clickhouse_url,
                user=config.clickhouse_user,
                password=config.clickhouse_password,
                database=config.clickhouse_database,
            )
        )
        stack.push_async_callback(store.close)
        deps = AuditDeps(reader=reader, admin=admin, store=store, clock=SystemClock())
        return await audit(deps, request_id)
