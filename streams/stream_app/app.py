"""The Faust shell: the app, its two tables with changelogs, its agent, and the commits.

Owns every Faust setting and what Faust must not do: make topics, serve HTTP, acknowledge or commit
by itself. Acks are off for `usage.v1`; offsets are committed here, once `confirmations.py` allows
it (see `totals.py` for why). Topics, the changelogs and Faust's leader topic included, are made by
`apply`. Called by `__main__.py`.
"""

import asyncio
import logging
from asyncio import Future
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import faust
from faust.types import TP, EventT, StreamT

from infra.errors import LogUnavailable
from infra.ports import LogRecord
from schemas import limits
from schemas.topics import FAUST_TABLES, STREAM_APP_ID, USAGE
from streams.stream_app import entries
from streams.stream_app.agent import AgentDeps, UsageAgent, UsageTables
from streams.stream_app.delivery import DeliveryWatch
from streams.stream_app.errors import Halted

CONCURRENCY = 1
"""More loses records: Faust commits past one in flight (faust#606), and handling is not atomic."""

Offsets = Callable[[], Awaitable[Mapping[int, int]]]
"""Tells an offset of each partition of `usage.v1`."""

CONFIRM_WITHIN_S = 1.0
CONFIRM_EVERY_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSettings:
    """What differs between deployments."""

    kafka: str
    client_id: str
    session_timeout_ms: int
    heartbeat_ms: int
    rebalance_timeout_ms: int


class FolderlessApp(faust.App):  # type: ignore[misc]  # faust ships no types
    """A Faust app that leaves no folders behind: its tables live in memory."""

    logger = logging.getLogger("faust.app")

    def _create_directories(self) -> None:
        """Make nothing; Faust would make `datadir` and more."""


class ConfirmedTable(faust.Table):  # type: ignore[misc]  # faust ships no types
    """A table that keeps the futures of its changelog writes, and lets the right value win."""

    logger = logging.getLogger("faust.tables")

    def __init__(self, *args: Any, wins: Callable[[bytes, bytes], bool], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._wins = wins
        self._writes: list[Future[Any]] = []

    def take_writes(self) -> list[Future[Any]]:
        """Return the changelog writes since the last call."""
        writes, self._writes = self._writes, []
        return writes

    def send_changelog(self, *args: Any, **kwargs: Any) -> Any:
        """Send a change as Faust does, and keep its future."""
        write = super().send_changelog(*args, **kwargs)
        self._writes.append(write)
        return write

    def apply_changelog_batch(self, batch: Iterable[EventT]) -> None:
        """Take what recovery reads, unless a better value is held already."""
        for event in batch:
            held = self.data.get(event.key)
            found = event.message.value
            if held is None or found is None or self._wins(held, found):
                super().apply_changelog_batch([event])


class StreamApp:
    """The running Faust app with its usage agent."""

    def __init__(
        self, settings: AppSettings, deps: AgentDeps, *, starts: Offsets, ends: Offsets
    ) -> None:
        self._deps = deps
        self._starts, self._ends = starts, ends
        self._app = FolderlessApp(STREAM_APP_ID, **_faust_settings(settings))
        # Absent or true, `acks` would let Faust commit what is not on the changelogs yet.
        topic = self._app.topic(
            USAGE,
            key_serializer="raw",
            value_serializer="raw",  # the agent decodes, so that poison reaches it
            partitions=limits.USAGE_PARTITIONS,
            acks=False,
        )
        wins = {"totals": entries.total_wins, "seen": entries.seen_wins}
        tables = {name: self._table(name, wins[name]) for name in FAUST_TABLES}
        self._agent = UsageAgent(
            deps,
            UsageTables(
                totals=tables["totals"],
                seen=tables["seen"],
                take_writes=lambda: [w for t in tables.values() for w in t.take_writes()],
            ),
        )
        self._watch = DeliveryWatch()
        self._handling = False
        self._failure: Future[None] | None = None
        self.recovered = asyncio.Event()
        registered = self._app.agent(topic, name="usage", concurrency=CONCURRENCY)(self._consume)
        assert registered.concurrency == 1, "records must be handled one at a time"
        # Sent once all tables are as the changelogs have them, before the first record.
        tables["seen"].on_recover(self._on_recovered)

    async def run(self) -> None:
        """Run until cancelled. Raises what ended it: Halted, or a Faust crash."""
        self._failure = asyncio.get_running_loop().create_future()
        # What waits to be sent is bounded by `Confirmations.full`; Faust's own bound of 100 waits
        # in steps of 100 ms and says so each time.
        self._app.producer.buffer.max_messages = 4 * limits.TOTALS_UNCONFIRMED_MAX
        starting = asyncio.ensure_future(self._app.start())
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._commit_for_ever())
                tasks.create_task(self._watch_for_ever())
                tasks.create_task(self._raise_crash(starting))
                tasks.create_task(_result(self._failure))
        finally:
            starting.cancel()

    async def stop(self) -> None:
        """Commit what is confirmed, or soon will be, and leave the group."""
        if self.recovered.is_set() and not self._app.crashed:
            with suppress(Exception):  # what is not committed is delivered again
                await self._commit_last()
        if self._failure is not None:
            self._failure.cancel()  # what stopping interrupts is no failure
        await self._app.stop()

    async def commit(self) -> None:
        """Commit every offset below which all changelog writes are acknowledged.

        A refused commit (the group moved on) changes nothing: records are delivered again.
        """
        if self._failure is not None and self._failure.done():
            return
        assignment = self._app.consumer.assignment()
        allowed = {
            partition: entry
            for partition, entry in self._deps.confirmations.advance().items()
            if TP(USAGE, partition) in assignment
        }
        if not allowed:
            return
        offsets = {TP(USAGE, partition): entry.next_offset for partition, entry in allowed.items()}
        # The transport's own commit: the public one goes through Faust's acks.
        if await self._app.consumer._commit(offsets):
            self._deps.confirmations.committed(allowed)

    def _table(self, name: str, wins: Callable[[bytes, bytes], bool]) -> ConfirmedTable:
        table = self._app.Table(
            name,
            key_type=bytes,
            value_type=bytes,
            partitions=limits.USAGE_PARTITIONS,
            wins=wins,
        )
        assert isinstance(table, ConfirmedTable)
        return table

    async def _consume(self, stream: StreamT[bytes]) -> None:
        """Handle records in order, for ever; once that failed, no commit is made."""
        try:
            async for event in stream.events():
                self._handling = True
                while self._deps.confirmations.full:  # noqa: ASYNC110  # emptied by the broker's pace
                    await asyncio.sleep(limits.TOTALS_COMMIT_EVERY_MS / 1000)
                await self._agent.handle(_record(event))
                self._handling = False
        except BaseException as error:
            # Faust would go on with the next record, also where it cancels us at a rebalance.
            self._halt(error)
            raise

    async def _commit_last(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(CONFIRM_WITHIN_S):
                while self._deps.confirmations.unconfirmed:
                    await asyncio.sleep(CONFIRM_EVERY_S)
                    self._deps.confirmations.advance()
        await self.commit()

    async def _on_recovered(self) -> None:
        starts = await self._starts()
        ours = {tp.partition for tp in self._app.consumer.assignment() if tp.topic == USAGE}
        self._deps.confirmations.resume({p: starts[p] for p in ours})
        self._agent.recovered()
        self.recovered.set()

    async def _commit_for_ever(self) -> None:
        while True:
            await asyncio.sleep(limits.TOTALS_COMMIT_EVERY_MS / 1000)
            if self.recovered.is_set():
                await self.commit()

    async def _watch_for_ever(self) -> None:
        while True:
            await asyncio.sleep(limits.USAGE_DELIVERY_CHECK_MS / 1000)
            if self._app.rebalancing or not self.recovered.is_set() or self._handling:
                self._watch.reset()
                continue
            try:
                ends = await self._ends()
            except LogUnavailable:
                self._watch.reset()
            else:
                self._watch.check(self._deps.confirmations.expected, ends)

    async def _raise_crash(self, starting: Future[Any]) -> None:
        await starting
        await self._app.wait_for_stopped()
        raise Halted(f"Faust stopped: {self._app.crash_reason!r}")

    def _halt(self, error: BaseException) -> None:
        if self._failure is not None and not self._failure.done():
            halted = Halted(f"a usage record could not be handled: {error!r}")
            halted.__cause__ = error
            self._failure.set_exception(halted)


async def _result(future: Future[None]) -> None:
    await asyncio.wait({future})  # unlike awaiting it, cancels nothing where this is cancelled
    future.result()


def _record(event: EventT) -> LogRecord:
    message = event.message
    return LogRecord(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        append_time_ms=round(message.timestamp * 1000),
        key=message.key,
        value=message.value or b"",
        headers=tuple(message.headers or ()),
    )


def _faust_settings(settings: AppSettings) -> dict[str, Any]:
    """Return every setting whose default would be wrong here, with the reason."""
    return {
        "broker": [f"kafka://{server}" for server in settings.kafka.split(",")],
        "store": "memory://",  # rebuilt from the changelogs; no second truth on disk
        "processing_guarantee": "at_least_once",  # exactly_once loses and doubles (faust#517, #323)
        "Table": ConfirmedTable,
        "autodiscover": False,
        "web_enabled": False,
        "topic_allow_declare": False,  # `apply` makes topics, with LogAppendTime and retention
        "topic_partitions": limits.USAGE_PARTITIONS,
        "broker_client_id": settings.client_id,
        "broker_session_timeout": settings.session_timeout_ms / 1000,
        "broker_heartbeat_interval": settings.heartbeat_ms / 1000,
        "broker_rebalance_timeout": settings.rebalance_timeout_ms / 1000,
        # Bounds commits, fetches and each step of recovery; at least the session time-out.
        "broker_request_timeout": max(2 * settings.session_timeout_ms, 15_000) / 1000,
        "broker_commit_interval": 60.0,  # Faust commits nothing of ours: its timer only costs CPU
        "consumer_auto_offset_reset": "earliest",  # a group without commits counts from the start
        "producer_acks": -1,
        # A changelog write that has not landed by then has failed, which restarts the process.
        "producer_request_timeout": limits.SEND_TIMEOUT_MS / 1000,
        "producer_max_request_size": limits.EVENT_BYTES_MAX,
        # Two writes of a record would be two requests; nothing waits for them but commits.
        "producer_linger": limits.TOTALS_LINGER_MS / 1000,
        "producer_max_batch_size": 256 * limits.KIB,  # of one partition in that time
        "consumer_max_fetch_size": limits.EVENT_BYTES_MAX,
    }
