"""Sends usage events until they are acknowledged (design rules 5.7, 6.4).

The same bytes are sent however often: consumers deduplicate by request id. An unknown outcome is
simply sent again.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from infra.errors import LogError
from infra.ports import Appended, LogWriter
from schemas import limits
from schemas.codec import encode
from schemas.topics import USAGE, usage_partition
from schemas.usage import UsageRecorded

_SENDS_PER_TURN = 32


class UsageSender:
    """A queue of usage events, bounded by the jobs that wait for their acknowledgement."""

    def __init__(
        self,
        writer: LogWriter,
        on_acknowledged: Callable[[str], None],
        *,
        together: int,
        is_crowded: Callable[[], bool] = lambda: False,
        linger_ms: int = limits.USAGE_LINGER_MS,
    ) -> None:
        self._writer = writer
        self._on_acknowledged = on_acknowledged
        self._together, self._linger_s = together, linger_ms / 1_000
        self._is_crowded = is_crowded
        self._waiting: list[UsageRecorded] = []
        self._wake = asyncio.Event()
        self._enough = asyncio.Event()

    def put(self, usage: UsageRecorded) -> None:
        """Queue the usage of an ended reply.

        It does not wait for others where requests wait for the place that it holds.
        """
        self._waiting.append(usage)
        self._wake.set()
        if len(self._waiting) >= self._together or self._is_crowded():
            self._enough.set()

    async def run(self) -> None:
        """Send for ever."""
        while True:
            await self.run_once()

    async def run_once(self) -> None:
        """Send what waits; wait where nothing does, then for `together` events or a while.

        No client waits for its usage, and each send costs the log and two readers as much as many.
        """
        await self._wake.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._linger_s):
                await self._enough.wait()
        self._wake.clear()
        self._enough.clear()
        waiting, self._waiting = self._waiting, []
        for number, usage in enumerate(waiting, 1):
            if number % _SENDS_PER_TURN == 0:
                await asyncio.sleep(0)  # what is read back comes first
            try:
                acknowledgement = await self._writer.enqueue(
                    USAGE, usage_partition(usage.org), encode(usage), key=usage.org.encode()
                )
            except LogError:
                self._again(usage)
                continue
            acknowledgement.add_done_callback(partial(self._acknowledged, usage))

    def _acknowledged(self, usage: UsageRecorded, done: "asyncio.Future[Appended]") -> None:
        if done.cancelled():
            return  # the writer is closing with this process
        error = done.exception()
        if error is None:
            self._on_acknowledged(usage.request_id)
        elif isinstance(error, LogError):
            self._again(usage)
        else:
            raise error

    def _again(self, usage: UsageRecorded) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(limits.COMMIT_EVERY_MS / 1000, self.put, usage)
