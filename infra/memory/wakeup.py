"""The one waiting poll of a reader, woken by appends and rebalances; an idle reader runs nothing.

Owns the future that a poll sleeps on. Does not own what to look for after waking: the poll looks
again.
"""

import asyncio


class Wakeup:
    """Let one poll sleep until something may have changed or its deadline passed."""

    __slots__ = ("_alarm", "_alarm_s", "_deadline_s", "_rang_s", "_sleeping")

    def __init__(self) -> None:
        self._sleeping: asyncio.Future[None] | None = None
        self._deadline_s = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_s = 0.0
        self._rang_s = float("-inf")

    def wake(self) -> None:
        """Wake the sleeping poll; no effect where none sleeps."""
        if self._sleeping is not None and not self._sleeping.done():
            self._sleeping.set_result(None)

    async def sleep_until(self, deadline_s: float) -> bool:
        """Sleep until woken, or until `deadline_s` of the loop's time; tell whether it has passed.

        A loop calls timers early by up to its clock's resolution: one that rang has passed.
        """
        assert self._sleeping is None, "one poll at a time for each reader"
        loop = asyncio.get_running_loop()
        self._sleeping, self._deadline_s = loop.create_future(), deadline_s
        # Most sleeps are woken long before: an alarm that is set already does for the next one.
        if self._alarm is None or deadline_s < self._alarm_s:
            self._set_alarm(loop)
        try:
            await self._sleeping
        finally:
            self._sleeping = None
        return self._deadline_s <= self._rang_s or loop.time() >= deadline_s

    def _set_alarm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_s = self._deadline_s
        self._alarm = loop.call_at(self._alarm_s, self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake the sleeper, unless it sleeps until later than the one the alarm was set for."""
        self._alarm, self._rang_s = None, self._alarm_s
        if self._sleeping is None:
            return
        if self._deadline_s > self._alarm_s:
            self._set_alarm(loop)
        else:
            self.wake()
