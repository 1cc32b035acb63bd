"""Batches and files as the handlers use them: made, found, cancelled, deleted.

Owns ids, the order of writes (contents first, then the fact that makes them count) and what an
idempotency key means for both. Shapes of answers are the handlers'. Made by the
composition root.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from gateway.batches.book import Batch, BatchBook
from gateway.batches.contents import Contents
from gateway.batches.items import Items
from gateway.batches.ledger import Ledger
from gateway.batches.results import Results
from gateway.batches.run import RunParts
from gateway.batches.runner import BatchRunner
from gateway.batches.tail import BatchTail
from gateway.errors import BatchUnknown, KeyReused, LogAway, Overloaded
from gateway.idempotency import scope_of
from gateway.rereading import OpenReader
from infra.control import Bury
from infra.errors import LogError
from infra.metrics import Metrics
from infra.ports import Clock, Entropy, LogReader, LogWriter, TopicPartition
from schemas import limits
from schemas.batches import BatchCreated, BatchDeleted, CancelRequested, Content
from schemas.ids import base62
from schemas.operations import KeyCreated
from schemas.requests import Dialect
from schemas.topics import BATCH_RESULTS, batch_partition

__all__ = ["BatchWiring", "Batches", "KeyUse", "Order"]

_ID_CHARS = 22  # 62**22 > 2**128
_PREFIXES = {Dialect.ANTHROPIC: "msgbatch_", Dialect.OPENAI: "batch_"}


class KeyUse(Struct, frozen=True, kw_only=True):
    """An idempotency key and what it came with."""

    key: str
    fingerprint: str


class Order(Struct, frozen=True, kw_only=True):
    """What a client asks for with a batch."""

    key: KeyCreated
    dialect: Dialect
    version: str
    endpoint: str
    lines: Sequence[bytes] = ()
    """The items, where they came with it."""
    item_count: int | None = None
    input_id: str | None = None
    """The file that holds the items, else."""
    content: Content | None = None
    metadata: str | None = None
    key_use: KeyUse | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWiring:
    """The adapters, parts and settings of one gateway's batches."""

    clock: Clock
    entropy: Entropy
    log: FilteringBoundLogger
    metrics: Metrics
    reader: LogReader
    writer: LogWriter
    open_reader: OpenReader
    items: Items
    pool: str
    runs_here: Callable[[str], bool]
    bury: Bury | None = None


class Batches:
    """All of it; its tail is run by its maker once the log is there, `run` by anybody."""

    def __init__(self, wiring: BatchWiring) -> None:
        self._clock = wiring.clock
        self._entropy = wiring.entropy
        self._pool = wiring.pool
        self._reading = 0
        self._uploading = 0
        self._draining = False
        self.book = BatchBook()
        self.tail = BatchTail(
            reader=wiring.reader,
            clock=wiring.clock,
            book=self.book,
            on_change=lambda: self._runner.wake(),
            bury=wiring.bury,
        )
        self.ledger = Ledger(writer=wiring.writer, tail=self.tail)
        self.contents = Contents(
            writer=wiring.writer, open_reader=wiring.open_reader, clock=wiring.clock
        )
        self.results = Results(
            writer=wiring.writer, open_reader=wiring.open_reader, clock=wiring.clock
        )
        self._runner = BatchRunner(
            parts=RunParts(
                clock=wiring.clock,
                log=wiring.log,
                metrics=wiring.metrics,
                contents=self.contents,
                results=self.results,
                ledger=self.ledger,
                items=wiring.items,
                slots=asyncio.Semaphore(limits.BATCH_ITEMS_INFLIGHT_MAX),
                draining=lambda: self._draining,
            ),
            book=self.book,
            pool=wiring.pool,
            runs_here=wiring.runs_here,
        )

    async def run(self) -> None:
        """Run what belongs to this gateway, for ever."""
        await self._runner.run()

    def drain(self) -> None:
        """Begin no more items: others go on with them."""
        self._draining = True

    async def stop(self) -> None:
        """Break off what runs."""
        self._draining = True
        await self._runner.stop()

    def new_id(self, prefix: str, key: KeyCreated, key_use: KeyUse | None) -> str:
        """Return the id of something new: under an idempotency key always the same one."""
        if key_use is None:
            return prefix + base62(bytes.fromhex(self._entropy.uuid().replace("-", "")), _ID_CHARS)
        # No key that a client can send holds a zero byte: other uses of the key stay apart.
        name = scope_of(key.org, key.workspace, f"\0{prefix}/{key_use.key}")
        return prefix + base62(hashlib.sha256(name.encode()).digest()[:16], _ID_CHARS)

    async def create(self, order: Order) -> tuple[Batch, bool]:
        """Return a new batch, recorded, or the one that an idempotency key made; and which it was.

        Raises: KeyReused, Overloaded, LogAway.
        """
        batch_id = self.new_id(_PREFIXES[order.dialect], order.key, order.key_use)
        known = await self._known(batch_id) if order.key_use is not None else None
        if known is not None:
            return _checked(known, order), True
        self.require_room()
        if len(self.book.unfinished) >= limits.BATCHES_UNFINISHED_MAX:
            raise Overloaded("Overloaded: too many batches wait; try again later")
        try:
            created = await self._written(batch_id, order)
        except LogError as error:
            raise LogAway("Service unavailable: the batch could not be recorded") from error
        await self.ledger.append(created)
        batch = self.book.batch(batch_id)
        assert batch is not None, "it was read back"
        return _checked(batch, order), batch.created != created

    async def find(self, key: KeyCreated, batch_id: str, dialect: Dialect) -> Batch:
        """Return a batch of the key's workspace. Raises BatchUnknown, LogAway."""
        known = self.book.batch(batch_id)
        if known is None and batch_id.startswith(_PREFIXES[dialect]):
            known = await self._known(batch_id)  # another gateway may have made it just now
        if (
            known is None
            or known.deleted
            or (known.created.org, known.created.workspace) != (key.org, key.workspace)
            or known.created.dialect is not dialect
        ):
            raise BatchUnknown("no such batch")
        return known

    async def newest(self, key: KeyCreated, dialect: Dialect) -> list[Batch]:
        """Return the batches of the key's workspace, newest first. Raises LogAway."""
        await self.catch_up()
        found = [
            batch
            for batch in self.book.batches(key.org, key.workspace)
            if batch.created.dialect is dialect
        ]
        return sorted(
            found,
            key=lambda batch: (batch.created.created_ms, batch.created.batch_id),
            reverse=True,
        )

    async def cancel(self, batch: Batch) -> None:
        """Have no more items begun; no effect on a batch that is cancelled or has ended."""
        if batch.cancel_ms is None and batch.ended is None:
            await self.ledger.append(
                CancelRequested(batch_id=batch.created.batch_id, at_ms=self._clock.now_ms())
            )

    async def delete(self, batch: Batch) -> None:
        """Let a batch that has ended be known no longer."""
        assert batch.ended is not None, "the handler has looked"
        await self.ledger.append(BatchDeleted(batch_id=batch.created.batch_id))

    async def catch_up(self, owner_id: str | None = None) -> None:
        """Wait until all that stands in the log now about an id, or about all, is known here.

        Raises: LogAway; Overloaded while the log is read for the first time.
        """
        self.require_started()
        try:
            await self.tail.catch_up(None if owner_id is None else batch_partition(owner_id))
        except LogError as error:
            raise LogAway("Service unavailable: batches cannot be read now") from error

    def require_started(self) -> None:
        """Let calls pass once the log was read up to where it stood. Raises Overloaded."""
        if not self.tail.caught_up:
            raise Overloaded("Overloaded: batches are not read yet")

    def require_room(self) -> None:
        """Refuse more batches and files where memory for them is used up. Raises Overloaded."""
        self.require_started()
        if self.book.full:
            raise Overloaded("Overloaded: too many batches and files are kept")
        if self._draining:
            raise Overloaded("Overloaded: this gateway is shutting down")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Count one more client that reads a content or results. Raises Overloaded."""
        if self._reading >= limits.BATCH_READS_MAX:
            raise Overloaded("Overloaded: too many results are read at once")
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1

    @contextmanager
    def uploading(self) -> Iterator[None]:
        """Count one more client that sends a file. Raises Overloaded."""
        if self._uploading >= limits.BATCH_UPLOADS_MAX:
            raise Overloaded("Overloaded: too many files are sent at once")
        self._uploading += 1
        try:
            yield
        finally:
            self._uploading -= 1

    def results_kept(self, created_ms: int) -> bool:
        """Tell whether results of a batch made then are kept still."""
        return self._clock.now_ms() < created_ms + limits.BATCH_RESULTS_KEPT_MS

    async def _known(self, batch_id: str) -> Batch | None:
        if self.book.batch(batch_id) is None:
            await self.catch_up(batch_id)
        return self.book.batch(batch_id)

    async def _written(self, batch_id: str, order: Order) -> BatchCreated:
        """Write the items where they came with the batch; return its fact. Raises LogError."""
        content = order.content
        if content is None:
            writing = self.contents.write(batch_id)
            for line in order.lines:
                await writing.add(line + b"\n")
            content = await writing.finish()
        partition, now_ms = batch_partition(batch_id), self._clock.now_ms()
        key_use = order.key_use
        return BatchCreated(
            batch_id=batch_id,
            org=order.key.org,
            workspace=order.key.workspace,
            key_id=order.key.key_id,
            dialect=order.dialect,
            dialect_version=order.version,
            endpoint=order.endpoint,
            pool=self._pool,
            input_id=order.input_id or batch_id,
            content=content,
            item_count=order.item_count,
            created_ms=now_ms,
            expires_ms=now_ms + limits.BATCH_DEADLINE_MS,
            results_partition=partition,
            results_floor=await self.tail.end_of(TopicPartition(BATCH_RESULTS, partition)),
            metadata=order.metadata,
            fingerprint=None if key_use is None else key_use.fingerprint,
        )


def _checked(batch: Batch, order: Order) -> Batch:
    """Return a batch that the order made or repeats. Raises KeyReused, BatchUnknown."""
    key_use = order.key_use
    if key_use is not None and batch.created.fingerprint != key_use.fingerprint:
        raise KeyReused("this idempotency key was used with another request")
    if batch.deleted:
        raise BatchUnknown("the batch that this idempotency key made was deleted")
    return batch
