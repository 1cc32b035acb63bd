"""One batch's run at one gateway: look through, answer what has no result, settle the rest, end.

Owns the order of these. It may break off anywhere and begin anew here or elsewhere, also beside
another run of the same batch: items run under keys of their own, the first result of each counts,
and so does the first end. Called by `runner.py`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from gateway.batches.book import Batch
from gateway.batches.contents import Contents
from gateway.batches.inspection import Inspection
from gateway.batches.items import Items, item_of
from gateway.batches.ledger import Ledger
from gateway.batches.results import Results
from gateway.errors import Overloaded
from infra.errors import OffsetUnreadable
from infra.metrics import Metrics
from infra.ports import Clock
from schemas import limits
from schemas.batches import BatchEnded, BatchValidated, InputFault, ItemEnded, ItemOutcome

__all__ = ["BatchRun", "RunParts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """What all runs of a gateway share."""

    clock: Clock
    log: FilteringBoundLogger
    metrics: Metrics
    contents: Contents
    results: Results
    ledger: Ledger
    items: Items
    slots: asyncio.Semaphore
    """One for each item that is answered now, of whichever batch; given out in turn."""
    draining: Callable[[], bool]


class BatchRun:
    """Runs one batch from wherever the log says it is."""

    def __init__(self, parts: RunParts, batch: Batch) -> None:
        """Take the batch as the book has it: it changes as facts are read."""
        self._parts = parts
        self._batch = batch
        self._created = batch.created

    async def run(self) -> None:
        """Run to the batch's end, or until it is to go on elsewhere.

        Raises: LogError, LogAway, Overloaded: begin anew later.
        """
        is_gone = False
        try:
            await self._run_items()
        except* OffsetUnreadable:
            is_gone = True
        if self._leaves():
            return
        if is_gone and self._batch.item_count is None:
            fault = InputFault(code="invalid_file", message="The file is not kept any more.")
            await self._fail((fault,))
            return
        await self._end()

    async def _run_items(self) -> None:
        """See to it that each item has a result. Raises as `run`, and OffsetUnreadable."""
        if self._batch.item_count is None:
            await self._look_through()
        if self._leaves():
            return
        done = await self._done()
        await self._answer_all(done)
        if not self._leaves():
            await self._settle_rest(done)

    def _leaves(self) -> bool:
        """Tell whether there is nothing more to do here."""
        return self._batch.ended is not None or self._parts.draining()

    def _over(self) -> bool:
        """Tell whether no more items may be begun here."""
        return self._leaves() or self._rest() is not None

    def _rest(self) -> ItemOutcome | None:
        """Return what becomes of items that were not begun; None while they may be."""
        if self._batch.cancel_ms is not None:
            return ItemOutcome.CANCELED
        if self._parts.clock.now_ms() >= self._created.expires_ms:
            return ItemOutcome.EXPIRED
        return None

    async def _look_through(self) -> None:
        """Check the input of a batch whose items came as a file; end it where it is no good."""
        inspection = Inspection(self._created.endpoint)
        async with aclosing(self._parts.contents.lines(self._created.content)) as lines:
            async for number, line in lines:
                if line is not None and len(line) > limits.BATCH_INLINE_BYTES_MAX:
                    await asyncio.to_thread(inspection.take, number, line)
                else:
                    inspection.take(number, line)
                if inspection.is_enough:
                    break
                if inspection.item_count % limits.BATCH_LINES_PER_TURN == 0:
                    await asyncio.sleep(0)
        inspection.end()
        if inspection.faults:
            await self._fail(tuple(inspection.faults))
            return
        validated = BatchValidated(
            batch_id=self._created.batch_id,
            item_count=inspection.item_count,
            at_ms=self._parts.clock.now_ms(),
        )
        await self._parts.ledger.append(validated)

    async def _done(self) -> bytearray:
        """Return by index whether an item has its result."""
        done = bytearray(self._batch.item_count or 0)
        async with aclosing(self._parts.results.read(self._created)) as reading:
            async for items in reading:
                for item in items:
                    done[item.index] = 1
        return done

    async def _answer_all(self, done: bytearray) -> None:
        """Answer items in order, as many at once as there are slots, until none may be begun."""
        async with asyncio.TaskGroup() as group, aclosing(self._lines(done)) as lines:
            async for index, line in lines:
                await self._parts.slots.acquire()
                if self._over():
                    self._parts.slots.release()
                    break
                group.create_task(self._answer(index, line, done))

    async def _answer(self, index: int, line: bytes | None, done: bytearray) -> None:
        try:
            item = item_of(self._created, index, line)
            ended = await self._parts.items.answer(self._created, item, self._over)
            if ended is not None:
                await self._note(ended, done)
        finally:
            self._parts.slots.release()

    async def _settle_rest(self, done: bytearray) -> None:
        """Give items that were not begun their results."""
        rest, waiting = self._rest(), list[ItemEnded]()
        if all(done):
            return
        if rest is None:
            raise Overloaded("items are left that may still be begun")
        async with aclosing(self._lines(done)) as lines:
            async for index, line in lines:
                custom_id = item_of(self._created, index, line).custom_id
                waiting.append(
                    ItemEnded(
                        index=index,
                        custom_id=custom_id,
                        outcome=rest,
                        status=0,
                        request_id="",
                        body=b"",
                    )
                )
                if len(waiting) >= limits.BATCH_RESULTS_PER_RECORD_MAX:
                    await self._parts.results.add(self._created, waiting)
                    waiting = []
        if waiting:
            await self._parts.results.add(self._created, waiting)

    async def _lines(self, done: bytearray) -> AsyncGenerator[tuple[int, bytes | None], None]:
        """Yield index and line of what has no result yet."""
        index = 0
        async with aclosing(self._parts.contents.lines(self._created.content)) as lines:
            async for _, line in lines:
                if index < len(done) and not done[index]:
                    yield index, line
                index += 1
                if index % limits.BATCH_LINES_PER_TURN == 0:
                    await asyncio.sleep(0)

    async def _note(self, ended: ItemEnded, done: bytearray) -> None:
        await self._parts.results.add(self._created, [ended])
        done[ended.index] = 1
        self._parts.metrics.count("batch_items_ended", outcome=ended.outcome.value)

    async def _fail(self, faults: tuple[InputFault, ...]) -> None:
        await self._append_end(
            BatchEnded(
                batch_id=self._created.batch_id, at_ms=self._parts.clock.now_ms(), faults=faults
            )
        )

    async def _end(self) -> None:
        """Append the end, with the counts of the results that stand in the log by now."""
        tally = await self._parts.results.tally(self._created)
        counts = tally.counts
        # Of an item whose input or result is not kept any more nobody can say more than this.
        lost = (self._batch.item_count or 0) - sum(counts.values())
        await self._append_end(
            BatchEnded(
                batch_id=self._created.batch_id,
                at_ms=self._parts.clock.now_ms(),
                succeeded=counts.get(ItemOutcome.SUCCEEDED, 0),
                errored=counts.get(ItemOutcome.ERRORED, 0) + lost,
                canceled=counts.get(ItemOutcome.CANCELED, 0),
                expired=counts.get(ItemOutcome.EXPIRED, 0),
                results_end=tally.results_end,
                output_bytes=tally.output_bytes,
                errors_bytes=tally.errors_bytes,
            )
        )

    async def _append_end(self, ended: BatchEnded) -> None:
        await self._parts.ledger.append(ended)
        if self._batch.ended != ended:
            return  # another run's end came first
        self._parts.metrics.count("batches_ended")
        self._parts.log.info(
            "batch ended",
            batch_id=ended.batch_id,
            org=self._created.org,
            key_id=self._created.key_id,
            endpoint=self._created.endpoint,
            succeeded=ended.succeeded,
            errored=ended.errored,
            canceled=ended.canceled,
            expired=ended.expired,
            faults=len(ended.faults),
            duration_ms=ended.at_ms - self._created.created_ms,
        )
