"""The one waiting poll of a reader, woken by appends and rebalances; an idle reader runs nothing.

Owns the future that a poll sleeps on. Does not own what to look for after waking: the poll looks
again.
"""

import asyncio


class Wakeup:
    """Let one poll sleep until something may have changed or its deadline passed."""

    __slots__ = ("_sleeping",)

    def __init__(self) -> None:
        self._sleeping: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Wake the sleeping poll; no effect where none sleeps."""
        if self._sleeping is not None and not self._sleeping.done():
            self._sleeping.set_result(None)

    async def sleep_until(self, deadline_s: float) -> None:
        """Sleep until woken, or until the loop's time reaches `deadline_s`."""
        assert self._sleeping is None, "one poll at a time for each reader"
        loop = asyncio.get_running_loop()
        self._sleeping = loop.create_future()
        timer = loop.call_at(deadline_s, self.wake)
        try:
            await self._sleeping
        finally:
            timer.cancel()
            self._sleeping = None
