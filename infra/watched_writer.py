"""Writers that note whether the log answers, and for how long it has not.

Owns one number, made from the sends that pass through; changes nothing about them. A short silence
is what the loss of one broker costs; a long one means that new work had better be refused at once
than fail late. Put by composition roots around the writers whose answers they watch.
"""

import asyncio
import itertools
import math
from asyncio import Future
from collections.abc import Sequence
from functools import partial

from infra.errors import SendRefused
from infra.ports import Appended, Clock, LogWriter

__all__ = ["Pulse", "WatchedWriter"]


class Pulse:
    """For how long none of the watched sends was answered."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._numbers = itertools.count()
        self._waiting: dict[int, float] = {}
        """When each send that has no outcome yet began, oldest first."""
        self._failing_since_s: float | None = None
        """When the first send began that failed with none answered since."""
        self._answered_s = -math.inf

    def silent_s(self) -> float:
        """Return for how long the log has owed an answer and given none; 0 = it owes none."""
        began_s = [next(iter(self._waiting.values()), None), self._failing_since_s]
        owed_since_s = min((moment for moment in began_s if moment is not None), default=None)
        if owed_since_s is None:
            return 0.0
        return self._clock.monotonic_s() - max(owed_since_s, self._answered_s)

    def begin(self) -> int:
        """Note that a send begins; return its number."""
        number = next(self._numbers)
        self._waiting[number] = self._clock.monotonic_s()
        return number

    def end(self, number: int, answered: bool | None) -> None:
        """Note a send's outcome; None where nobody waited for it to the end."""
        began_s = self._waiting.pop(number)
        if answered:
            self._failing_since_s, self._answered_s = None, self._clock.monotonic_s()
        elif answered is False and self._failing_since_s is None:
            self._failing_since_s = began_s


class WatchedWriter:
    """Implements `infra.ports.LogWriter` over another one, which its owner starts and closes."""

    def __init__(self, writer: LogWriter, pulse: Pulse) -> None:
        self._writer, self._pulse = writer, pulse

    async def enqueue(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> "Future[Appended]":
        """Queue a record; see `infra.ports.LogWriter.enqueue`."""
        number = self._pulse.begin()
        try:
            future = await self._writer.enqueue(topic, partition, value, key=key, headers=headers)
        except BaseException as error:
            # A refusal is an answer too.
            self._pulse.end(number, True if isinstance(error, SendRefused) else None)
            raise
        future.add_done_callback(partial(self._settled, number))
        return future

    async def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> Appended:
        """Append one record and wait for its acknowledgement; see `infra.ports.LogWriter.send`."""
        return await (await self.enqueue(topic, partition, value, key=key, headers=headers))

    async def close(self) -> None:
        """Leave the writer to its owner."""

    def _settled(self, number: int, done: "asyncio.Future[Appended]") -> None:
        error = None if done.cancelled() else done.exception()
        answered = error is None or isinstance(error, SendRefused)
        self._pulse.end(number, None if done.cancelled() else answered)
