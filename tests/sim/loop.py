"""The simulator's event loop: virtual time, no threads, and a seeded order of what is ready.

Owns time, order and the notion of a process: everything that runs carries the process that it
belongs to in its context, so that a process can be paused or killed between any two awaits. A run
depends on nothing but its seed, also in another interpreter with another hash seed.
"""

import asyncio
import heapq
import random
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any

STEPS_MAX = 3_000_000
"""A run that takes more steps than this never ends by itself."""

NETWORK = "infra.memory"
"""Callbacks of the memory log are the network's and the broker's: they outlive any process."""


class Violation(AssertionError):
    """Something happened that must never happen."""


class Process:
    """What runs as one operating-system process: its tasks, and whether it lives or stands."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.paused = False
        self.tasks: list[asyncio.Task[Any]] = []
        """All that were ever made, also those that are done."""

    def alive(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that are not done."""
        return [task for task in self.tasks if not task.done()]

    def __repr__(self) -> str:
        return self.name


CURRENT: ContextVar[Process | None] = ContextVar("process", default=None)


class SimTask(asyncio.Task[Any]):
    """A task that hashes by its number, so that sets of tasks iterate alike in every run."""

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        *,
        loop: "SimLoop",
        context: Context | None = None,
    ) -> None:
        loop._tasks.append(self)
        self._number = len(loop._tasks)
        super().__init__(coroutine, loop=loop, context=context)

    def __hash__(self) -> int:
        return self._number


def _nothing() -> None:
    """Stand in the place of a callback that was cancelled."""


class SimHandle(list[Any]):
    """A callback to come, ready or timed: callback, arguments, context.

    A list, because nothing else that can be changed is made as fast, and a run makes thousands.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:  # type: ignore[override]  # lists have none
        return 0  # not by address: sets of handles iterate alike in every run

    def cancel(self) -> None:
        """Never call back; what it held is let go."""
        self[:2] = _nothing, ()


class SimLoop(asyncio.base_events.BaseEventLoop):
    """Runs ready handles one by one, in an order drawn from the seed; jumps over idle time."""

    def __init__(self, seed: int, *, shuffled: bool) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._shuffled = shuffled
        self._now_s = 0.0
        self._clock_resolution = 1e-9
        self._ready: list[SimHandle] = []
        self._parked: list[SimHandle] = []
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._timers_set = 0
        self._pauses = 0
        self._clearing = False
        self._tasks: list[SimTask] = []
        self.steps = 0
        self.violation: BaseException | None = None
        # Calls without a frame: each of the thousands of futures and tasks makes these two.
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign]
        self.get_debug = bool  # type: ignore[method-assign]  # which says False
        self.set_task_factory(_make_task)  # type: ignore[arg-type]  # typeshed wants a Future
        self.set_exception_handler(_report)

    def time(self) -> float:
        """Return virtual seconds since the run began."""
        return self._now_s

    def call_soon(  # type: ignore[override]  # typeshed wants variadic types
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> SimHandle:
        """Call back as soon as its turn is drawn."""
        handle = SimHandle((callback, args, context or copy_context()))
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]  # typeshed wants variadic types
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> SimHandle:
        """Call back at a time; those of one time in the order in which they were set."""
        handle = SimHandle((callback, args, context or copy_context()))
        if when <= self._now_s:
            self._ready.append(handle)
        else:
            self._timers_set += 1
            heapq.heappush(self._timers, (when, self._timers_set, handle))
        return handle

    def call_later(  # type: ignore[override]  # typeshed wants variadic types
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> SimHandle:
        """Call back after some time."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run to the end. Raises the first violation, or whatever ended `main`."""
        try:
            self.run_until_complete(main)
        except RuntimeError:
            if self.violation is None:
                raise
        if self.violation is not None:
            raise self.violation

    def violate(self, violation: BaseException) -> None:
        """Stop the run; the first violation is the one that counts."""
        if self.violation is None:
            self.violation = violation
        if not self._clearing:
            self.stop()

    def clear(self, end: Callable[[], None]) -> None:
        """Call `end` on the loop, cancel what is left after it, and close."""
        self._clearing = True
        task = self.create_task(self._clear(end))
        while not task.done():
            try:
                self.run_until_complete(task)
            except RuntimeError:
                pass  # the stop that the end of the run itself had asked for
        self.close()
        for held in (self._tasks, self._timers, self._parked):
            held.clear()

    async def _clear(self, end: Callable[[], None]) -> None:
        end()
        # Not `asyncio.all_tasks`: that looks through those of all runs that are not collected yet.
        for task in self._tasks:
            if task is not asyncio.current_task(self):
                task.cancel()
        await asyncio.sleep(60.0)

    def spawn(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task of a process."""
        context = Context()
        context.run(CURRENT.set, process)
        return self.create_task(work, context=context)

    def pause(self, process: Process) -> None:
        """Stop a process where it stands, as SIGSTOP does; the network goes on."""
        if not process.paused:
            process.paused = True
            self._pauses += 1

    def resume(self, process: Process) -> None:
        """Let a paused process go on: all its timers that are due are late now."""
        if process.paused:
            process.paused = False
            self._pauses -= 1
            self._ready.extend(self._parked)
            self._parked.clear()

    def kill(self, process: Process) -> None:
        """End a process where it stands; its connections are the caller's to break."""
        process.dead = True
        self.resume(process)
        for task in process.alive():
            task.cancel()

    def after_steps(self, count: int, call: Callable[[], None]) -> None:
        """Call after `count` more steps of the loop, that is between two awaits of somebody."""
        context = Context()
        if count <= 0:
            self.call_soon(call, context=context)
        else:
            self.call_soon(self.after_steps, count - 1, call, context=context)

    def _run_once(self) -> None:
        ready, draw, shuffled = self._ready, self._random.random, self._shuffled
        while not self._stopping:  # type: ignore[attr-defined]  # of the base
            if not ready:
                self._jump(self._timers)
            count = len(ready)
            handle = ready.pop(int(draw() * count) if shuffled and count > 1 else 0)
            callback, arguments, context = handle
            if callback is _nothing:
                continue
            if self._pauses and self._is_paused(handle):
                self._parked.append(handle)
                continue
            self.steps += 1
            if self.steps > STEPS_MAX:
                self.violate(Violation(f"no end after {STEPS_MAX} steps"))
            try:  # here, not in a method of its own: nothing else runs as often
                context.run(callback, *arguments)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                said = {"message": f"in {callback}", "exception": error}
                self.call_exception_handler(said)

    def _jump(self, timers: list[tuple[float, int, SimHandle]]) -> None:
        while timers and timers[0][2][0] is _nothing:
            heapq.heappop(timers)
        if not timers:
            raise Violation("deadlock: nothing is ready and no timer is set")
        now_s = self._now_s = timers[0][0]
        while timers and timers[0][0] <= now_s:
            self._ready.append(heapq.heappop(timers)[2])

    def _is_paused(self, handle: SimHandle) -> bool:
        callback, _, context = handle
        process = context.get(CURRENT)
        if process is None or not process.paused:
            return False
        module = getattr(callback, "__module__", None)
        return not (isinstance(module, str) and module.startswith(NETWORK))

    def _process_events(self, event_list: Iterable[Any]) -> None:
        """There are no events but timers."""

    def _write_to_self(self) -> None:
        """There is no other thread to be woken from."""

    def call_soon_threadsafe(  # type: ignore[override]  # never called
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """Refuse: there are no threads in a simulation."""
        raise Violation("a thread in the simulation")


def _make_task(
    loop: SimLoop, coroutine: Coroutine[Any, Any, Any], context: Context | None = None
) -> SimTask:
    task = SimTask(coroutine, loop=loop, context=context)
    process = context.get(CURRENT) if context is not None else CURRENT.get()
    if process is not None:
        process.tasks.append(task)
        if process.dead:
            task.cancel()
    return task


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Take what asyncio would only log: an error that nobody waited for is a violation here."""
    assert isinstance(loop, SimLoop), "the handler of this loop alone"
    error = context.get("exception")
    if isinstance(error, Violation):
        loop.violate(error)
    elif error is not None:
        violation = Violation(f"{context['message']}: {error!r}")
        violation.__cause__ = error
        loop.violate(violation)
