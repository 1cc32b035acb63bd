"""The batches that this gateway runs now: which, how many at once, and what ends a run.

Owns the tasks. A batch belongs to the gateway that `placement.py` names; where that changes the
run here is broken off, and the other goes on from the log. Run by the composition root.
"""

import asyncio
from collections.abc import Callable

from gateway.batches.book import Batch, BatchBook
from gateway.batches.placement import next_of
from gateway.batches.run import BatchRun, RunParts
from gateway.errors import GatewayError
from infra.errors import LogError
from schemas import limits

__all__ = ["BatchRunner"]


class BatchRunner:
    """Starts and stops runs."""

    def __init__(
        self, *, parts: RunParts, book: BatchBook, pool: str, runs_here: Callable[[str], bool]
    ) -> None:
        """Take the parts; `runs_here` tells of a batch's id whether it belongs to this gateway."""
        self._parts = parts
        self._book = book
        self._pool = pool
        self._runs_here = runs_here
        self._running: dict[str, tuple[Batch, asyncio.Task[None]]] = {}
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Look at the book soon: facts were read."""
        self._woken.set()

    async def run(self) -> None:
        """Take a turn whenever facts were read, and now and then, for ever."""
        while True:
            self.run_once()
            try:
                async with asyncio.timeout(limits.BATCH_LOOK_EVERY_MS / 1000):
                    await self._woken.wait()
            except TimeoutError:
                pass  # who runs what may have changed without any fact
            self._woken.clear()

    def run_once(self) -> None:
        """Break off what belongs elsewhere, start what belongs here and has room."""
        for batch_id, (_, task) in self._running.items():
            if not self._runs_here(batch_id):
                task.cancel()
        waiting = {
            batch.created.batch_id: batch
            for batch in self._book.unfinished
            if batch.created.pool == self._pool
            and batch.created.batch_id not in self._running
            and self._runs_here(batch.created.batch_id)
        }
        while waiting and len(self._running) < limits.BATCHES_RUNNING_MAX:
            if self._parts.draining():
                return
            running = [batch.created for batch, _ in self._running.values()]
            chosen = next_of([batch.created for batch in waiting.values()], running)
            self._start(waiting.pop(chosen.batch_id))

    async def stop(self) -> None:
        """Break everything off; what is in flight is found again by whoever goes on."""
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, batch: Batch) -> None:
        task = asyncio.create_task(self._run(batch))
        self._running[batch.created.batch_id] = batch, task

    async def _run(self, batch: Batch) -> None:
        batch_id = batch.created.batch_id
        try:
            await BatchRun(self._parts, batch).run()
        except* (LogError, GatewayError) as errors:
            self._parts.log.warning("batch interrupted", batch_id=batch_id, why=str(errors))
            await asyncio.sleep(limits.BATCH_RETRY_MS_MIN / 1000)
        except* Exception as errors:
            self._parts.log.error("batch interrupted", batch_id=batch_id, exc_info=errors)
            await asyncio.sleep(limits.BATCH_RETRY_MS_MAX / 1000)
        finally:
            self._running.pop(batch_id, None)
            self.wake()
