"""The engine pump: steps the engine in the main thread and hands its outputs to the worker's loop.

Owns the hand-over in both directions and its bounds: commands in (thread-safe, bounded), outputs
out (bounded by credits). Does not own what is started or what outputs mean: that is
`engine_workers.worker`. `run` is the main thread of a worker process; the simulator calls
`run_once(0)` on its one loop instead.
"""

import threading
from collections import deque
from collections.abc import Callable

from msgspec import Struct

from engine_workers.engine.port import Engine, EngineRejected, EngineRequest, StepOutput
from infra.ports import Clock
from schemas import limits

IDLE_WAIT_S = 1.0
"""Longest sleep of an idle turn; a command, a returned credit or `stop` wakes it at once."""


class Start(Struct, frozen=True):
    """Start this run, after the output tokens `emitted` by earlier attempts."""

    request: EngineRequest
    emitted: tuple[int, ...] = ()


class Abort(Struct, frozen=True):
    """Drop this run; no output of it is delivered by turns that begin after this was taken."""

    run_id: str


Command = Start | Abort
Rejection = tuple[str, str]
"""Run id and message of a run that the engine refused."""
Deliver = Callable[[list[StepOutput], list[Rejection]], None]


class PumpFull(Exception):
    """More commands wait than `commands_max`; this one was not taken."""


class EnginePump:
    """Feeds an engine and drains it, one step a turn.

    `submit`, `consumed`, `stop` and `stalled_ms` may be called from any thread, `run` and
    `run_once` only from the one that made the engine. `deliver` is called from that thread too;
    each call takes one of `credits`, which `consumed` gives back, and without credits the engine
    is not stepped (commands still reach it).
    """

    def __init__(
        self,
        engine: Engine,
        deliver: Deliver,
        clock: Clock,
        *,
        credits: int = limits.ENGINE_STEP_CREDITS,
        commands_max: int = limits.ENGINE_COMMANDS_MAX,
    ) -> None:
        self._engine = engine
        self._deliver = deliver
        self._clock = clock
        self._changed = threading.Condition()
        self._commands: deque[Command] = deque()
        self._credits = credits
        self._commands_max = commands_max
        self._in_turn = False
        self._stopping = False
        self._progress_s = clock.monotonic_s()

    def submit(self, command: Command) -> None:
        """Queue a command for the next turn. Raises PumpFull (nothing queued)."""
        with self._changed:
            if len(self._commands) >= self._commands_max:
                raise PumpFull(f"{len(self._commands)} engine commands wait already")
            if not self._commands and not self._in_turn:
                self._progress_s = self._clock.monotonic_s()  # idle until now: no stall
            self._commands.append(command)
            self._changed.notify()

    def consumed(self) -> None:
        """Give back the credit of one delivery."""
        with self._changed:
            self._credits += 1
            self._changed.notify()

    def stop(self) -> None:
        """Make `run` return after the turn in progress."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def stalled_ms(self) -> int:
        """Return for how long work waits without a finished turn; 0 if idle or out of credits."""
        with self._changed:
            if not (self._in_turn or self._commands):
                return 0
            return int((self._clock.monotonic_s() - self._progress_s) * 1_000)

    def run(self) -> None:
        """Turn until `stop`. Raises EngineDead."""
        while not self._stopping:
            self.run_once(IDLE_WAIT_S)

    def run_once(self, wait_s: float) -> bool:
        """Take all commands, step once, deliver; tell whether there was anything to do.

        Waits up to `wait_s` for something to do. Raises EngineDead.
        """
        if not self._begin_turn(wait_s):
            return False
        rejected = self._apply_commands()
        outputs = self._step()
        if outputs or rejected:
            with self._changed:
                self._credits -= 1
            self._deliver(outputs, rejected)
        with self._changed:
            self._in_turn = False
            self._progress_s = self._clock.monotonic_s()
        return True

    def _begin_turn(self, wait_s: float) -> bool:
        with self._changed:
            if not self._has_turn() and wait_s > 0:
                self._changed.wait_for(lambda: self._stopping or self._has_turn(), wait_s)
            if self._stopping or not self._has_turn():
                return False
            self._in_turn = True
            self._progress_s = self._clock.monotonic_s()
            return True

    def _has_turn(self) -> bool:
        return bool(self._commands) or (self._credits > 0 and self._engine.has_work())

    def _apply_commands(self) -> list[Rejection]:
        rejected: list[Rejection] = []
        for _ in range(len(self._commands)):  # what is submitted meanwhile waits for the next turn
            command = self._commands.popleft()
            if isinstance(command, Abort):
                self._engine.abort(command.run_id)
                continue
            try:
                self._engine.start(command.request, command.emitted)
            except EngineRejected as error:
                rejected.append((command.request.run_id, str(error)))
        return rejected

    def _step(self) -> list[StepOutput]:
        if self._credits > 0 and self._engine.has_work():
            return self._engine.step()
        return []
