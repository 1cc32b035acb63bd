"""All processes of one platform together: started, polled for readiness, drained in order.

Owns the keepers and the poll. Which processes there are and in which order they start is decided
by `startup.py`; the nursery knows only their specifications.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain

import structlog

from infra.errors import StartupError
from infra.ports import Clock
from infra.supervisor.child import ProcessSpec, last_lines, rotate
from infra.supervisor.folder import DataFolder
from infra.supervisor.keeper import Decide, Keeper, KeeperState
from infra.supervisor.plan import kind_of
from infra.supervisor.probe import answers
from infra.supervisor.restarts import after_exit
from schemas import limits

__all__ = ["Nursery"]

_log = structlog.get_logger()


class Nursery:
    """Keeps processes running until told to drain."""

    def __init__(
        self,
        folder: DataFolder,
        clock: Clock,
        on_change: Callable[[Keeper | None], None],
        decide: Decide = after_exit,
    ) -> None:
        self._decide = decide
        self._folder, self._clock, self._on_change = folder, clock, on_change
        self._keepers: dict[str, Keeper] = {}
        self._changed, self._stirred = asyncio.Event(), asyncio.Event()
        self._looked_s = 0.0
        self._restless_s = 0.0
        """When a process last became unready, on the monotonic clock."""
        self.failed = asyncio.Event()
        """Set once a process ended too often to start it again."""

    @property
    def keepers(self) -> Collection[Keeper]:
        """Every process started so far, in the order of their start."""
        return self._keepers.values()

    def start(self, spec: ProcessSpec) -> None:
        """Start a process and keep it running."""
        keeper = Keeper(
            spec,
            logs=self._folder.logs,
            run=self._folder.run,
            clock=self._clock,
            on_change=self._note,
            decide=self._decide,
        )
        self._keepers[spec.name] = keeper
        keeper.start()

    async def ready(self, *names: str) -> None:
        """Return once these are ready.

        Raises: StartupError where one failed for good, or is not ready within the bound.
        """
        keepers = [self._keepers[name] for name in names]
        try:
            async with asyncio.timeout(limits.START_WITHIN_S):
                while not all(keeper.ready for keeper in keepers):
                    self.check()
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            late = next(keeper for keeper in keepers if not keeper.ready)
            raise StartupError(
                f"{late.spec.name} was not ready within {limits.START_WITHIN_S} s; its last lines "
                f"(all: {self._folder.logs / late.spec.name}.log):\n{self._last_lines(late)}"
            ) from None

    def check(self) -> None:
        """Raise StartupError where a process ended too often."""
        for keeper in self.keepers:
            if keeper.state is KeeperState.FAILED:
                self._folder.check_space()
                raise StartupError(
                    f"{keeper.spec.name} ended too often, last with {keeper.why}; its last lines "
                    f"(all: {self._folder.logs / keeper.spec.name}.log):\n"
                    f"{self._last_lines(keeper)}"
                )

    async def watch(self) -> None:
        """Poll readiness and rotate log files until cancelled."""
        while True:
            self._stirred.clear()
            await self.watch_once()
            unready = not all(keeper.ready for keeper in self.keepers)
            restless = self._clock.monotonic_s() - self._restless_s < limits.START_WITHIN_S
            await asyncio.sleep(limits.READY_POLL_MIN_S)
            if not (unready and restless):
                await self._pause(limits.READY_POLL_MAX_S - limits.READY_POLL_MIN_S)

    async def _pause(self, pause_s: float) -> None:
        """Sleep, but not through the start or the end of a process."""
        try:
            async with asyncio.timeout(pause_s):
                await self._stirred.wait()
        except TimeoutError:
            pass  # nothing happened

    async def watch_once(self) -> None:
        """Ask the unready ones, and from time to time all."""
        now_s = self._clock.monotonic_s()
        all_due = now_s - self._looked_s >= limits.READY_POLL_MAX_S
        if all_due:
            self._looked_s = now_s
            for keeper in self.keepers:
                rotate(self._folder.logs / f"{keeper.spec.name}.log")
        asked = [keeper for keeper in self.keepers if keeper.pid and (all_due or not keeper.ready)]
        found = await asyncio.gather(*(answers(keeper.spec.probe) for keeper in asked))
        for keeper, ready in zip(asked, found, strict=True):
            keeper.note_ready(ready)

    async def drain(self, order: Sequence[str]) -> None:
        """Stop everything, one kind after the other; kinds that `order` lacks stop first."""
        unnamed = [k for k in self.keepers if kind_of(k.spec.name) not in order]
        stages: Iterable[list[Keeper]] = chain(
            [unnamed],
            ([k for k in self.keepers if kind_of(k.spec.name) == kind] for kind in order),
        )
        for stage in stages:
            await asyncio.gather(*(keeper.stop() for keeper in stage))

    def hurry(self) -> None:
        """Give everything that stops only a few seconds more."""
        for keeper in self.keepers:
            keeper.hurry()

    def _note(self, keeper: Keeper) -> None:
        _log.info(
            "process", name=keeper.spec.name, state=keeper.state, ready=keeper.ready, pid=keeper.pid
        )
        if not keeper.ready:
            self._restless_s = self._clock.monotonic_s()
            self._stirred.set()
        if keeper.state is KeeperState.FAILED:
            self.failed.set()
        self._changed.set()
        self._on_change(keeper)

    def _last_lines(self, keeper: Keeper) -> str:
        return last_lines(self._folder.logs / f"{keeper.spec.name}.log")
