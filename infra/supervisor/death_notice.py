"""Tells the log that a member of a consumer group is dead, so that its lanes move at once.

Owns the notices on their way. Which group and which member stands in the note that the process left
(`infra/membership.py`); saying it to Kafka is `infra/kafka/departure.py`. Called by the supervisor
when a process ended without being asked to.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from infra import membership
from infra.errors import LogUnavailable
from infra.membership import Membership
from schemas import limits

__all__ = ["DeathNotices", "Leave"]

Leave = Callable[[Membership], Awaitable[bool]]
"""Takes a member out of its group; tells whether it was in it. Raises LogUnavailable."""

_log = structlog.get_logger()


class DeathNotices:
    """The notices of one platform."""

    def __init__(
        self, data_dir: Path, leave: Leave, *, pause_s: float = limits.DEATH_NOTICE_PAUSE_S
    ) -> None:
        self._data_dir, self._leave, self._pause_s = data_dir, leave, pause_s
        self._tasks: set[asyncio.Task[None]] = set()

    def process_ended(self, process: str) -> None:
        """Send a notice in the background where the process was a group's member to the end."""
        found = membership.take(membership.path_of(self._data_dir, process))
        if found is None:
            return
        task = asyncio.create_task(self._send(process, found), name=f"death of {process}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def all_ended(self) -> None:
        """Send the notices of an earlier run's processes, none of which lives any more."""
        for process in membership.left_behind(self._data_dir / "run"):
            self.process_ended(process)

    async def stop(self) -> None:
        """Give up what was not sent: the session time-out says it later."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, process: str, found: Membership) -> None:
        """Send until it is said; a late notice harms nobody, since member ids are never reused."""
        for number in range(limits.DEATH_NOTICE_TRIES_MAX):
            try:
                was_in = await self._leave(found)
            except LogUnavailable as error:
                if not number:
                    _log.warning("death_notice_unsent", name=process, why=str(error))
                await asyncio.sleep(self._pause_s)
                continue
            _log.info("death_notice", name=process, group=found.group, was_in=was_in)
            return
