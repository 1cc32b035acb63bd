"""Keeps one process running: starts it, starts it again, stops it for good.

Owns the process's state as operators see it. When to start again is decided in `restarts.py`; in
which order to stop, by the supervisor.
"""

import asyncio
import signal
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import structlog

from infra.errors import StartupError
from infra.ports import Clock
from infra.supervisor.child import Child, ProcessSpec, describe_exit
from infra.supervisor.priority import NORMAL, niceness, set_niceness
from infra.supervisor.restarts import Restarts, after_exit
from schemas import limits

__all__ = ["Decide", "Keeper", "KeeperState"]

Decide = Callable[[Restarts, float, float], tuple[Restarts, float | None]]
"""When to start again; see `restarts.after_exit`."""

_log = structlog.get_logger()


class KeeperState(StrEnum):
    """Where a process stands in its life."""

    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class Keeper:
    """One process for as long as the platform runs."""

    def __init__(
        self,
        spec: ProcessSpec,
        *,
        logs: Path,
        run: Path,
        clock: Clock,
        on_change: Callable[["Keeper"], None],
        decide: Decide = after_exit,
    ) -> None:
        self.spec = spec
        self.state = KeeperState.STARTING
        self.ready = False
        self.why = ""
        """Why it ended last, in words."""
        self._logs, self._run, self._clock, self._on_change = logs, run, clock, on_change
        self._restarts, self._decide = Restarts(), decide
        self._child: Child | None = None
        self._started_s = 0.0
        self._niceness = NORMAL
        self._was_ready = False
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The pid of the running process."""
        return None if self._child is None else self._child.pid

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return self._restarts.total

    def start(self) -> None:
        """Start the process and keep it running from now on."""
        self._task = asyncio.create_task(self._keep(), name=f"keep {self.spec.name}")

    def note_ready(self, ready: bool) -> None:
        """Take what a probe found."""
        ready = ready and self._child is not None and not self._stop.is_set()
        self._was_ready |= ready
        self._pace(loading=not ready)
        if ready != self.ready:
            self.ready = ready
            if ready and self.state in (KeeperState.STARTING, KeeperState.RESTARTING):
                self.state = KeeperState.RUNNING
            self._on_change(self)

    async def stop(self) -> None:
        """Stop the process for good: SIGTERM, then SIGKILL at the end of its time."""
        self._stop.set()
        if self._task is not None:
            await self._task

    def hurry(self) -> None:
        """Give a stopping process only a few seconds more."""
        self._hurry.set()

    async def _keep(self) -> None:
        try:
            await self._keep_running()
        except Exception as error:
            _log.exception("keeper_failed", name=self.spec.name)
            self.why = f"{type(error).__name__}: {error}"
        self._change(KeeperState.FAILED if not self._stop.is_set() else KeeperState.STOPPED)

    async def _keep_running(self) -> None:
        while not self._stop.is_set():
            pause_s = await self._run_once()
            if pause_s is None:
                break
            try:
                async with asyncio.timeout(pause_s):
                    await self._stop.wait()
            except TimeoutError:
                continue

    async def _run_once(self) -> float | None:
        """Run the process to its end; return the pause before the next start, None for no more."""
        started_s = self._started_s = self._clock.monotonic_s()
        try:
            self._child = Child(self.spec, self._logs, self._run)
        except StartupError as error:
            self.why = str(error)
        else:
            self._niceness = NORMAL
            self._pace(loading=True)
            self._on_change(self)
            self.why = describe_exit(await self._end_of(self._child))
            self._child = None
        now_s = self._clock.monotonic_s()
        if self._stop.is_set():
            return None
        self._restarts, pause_s = self._decide(self._restarts, now_s, now_s - started_s)
        _log.warning("process_ended", name=self.spec.name, why=self.why, pause_s=pause_s)
        if pause_s is not None:
            self._change(KeeperState.RESTARTING)
        return pause_s

    async def _end_of(self, child: Child) -> int:
        """Wait for the child's end; once a stop is asked for, see to it that there is one."""
        ended = asyncio.create_task(child.wait())
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait({ended, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            self._change(KeeperState.STOPPING)
            child.signal(signal.SIGTERM)
            hurry = asyncio.create_task(self._hurry.wait())
            await asyncio.wait(
                {ended, hurry},
                timeout=self.spec.stop_within_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if hurry.done() and not ended.done():
                await asyncio.wait({ended}, timeout=limits.HURRIED_STAGE_S)
            hurry.cancel()
            if not ended.done():
                _log.warning("process_killed", name=self.spec.name, after="its time to stop")
                child.kill()
        stop.cancel()
        return await ended

    def _pace(self, *, loading: bool) -> None:
        """Let a process work, or load again, beside those that serve, not instead of them."""
        if self._child is None:
            return
        # The platform's first start is nobody's burden; from then on a restart is, and a probe that
        # fails on a busy machine is no reason to take more of it.
        wanted = self.spec.niceness if self._restarts.total or self._was_ready else NORMAL
        if loading and self._restarts.total and self.spec.loads_gently:
            wanted = niceness(self._clock.monotonic_s() - self._started_s)
        if wanted != self._niceness and set_niceness(self._child.pid, wanted):
            self._niceness = wanted

    def _change(self, state: KeeperState) -> None:
        self.state = state
        if state is not KeeperState.RUNNING:
            self.ready = False
        self._on_change(self)
