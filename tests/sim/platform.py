"""What all simulated processes share: the log, the loop, the script, the checkers' ears."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

from engine_workers.engine.script import Script
from infra.memory import MemoryBroker, MemoryUsageStore
from tests.sim.clocks import SimClock
from tests.sim.events import Events
from tests.sim.faults import SeededFaults
from tests.sim.loop import Process, SimLoop, Violation
from tests.sim.options import Options

if TYPE_CHECKING:
    from engine_workers.engine.port import StepOutput
    from tests.sim.workers import SimWorker

POOL = "pool"
ALIAS = "model"
WORKSPACE = "default"
EOS_ID = 256
VOCABULARY = 263
"""Bytes, the end, and the pieces of several characters of `tests.assembler_cases`."""
CONTEXT_TOKENS = 256


class Dies(Protocol):
    """A connection that can be cut in the middle of anything."""

    def kill(self) -> None:
        """Die."""


Connection = TypeVar("Connection", bound=Dies)


@dataclass(slots=True)
class Life:
    """One incarnation of a process: its tasks and the connections that die with it."""

    process: Process
    clock: SimClock
    incarnation: str
    connections: list[Dies] = field(default_factory=list)

    def keep(self, connection: Connection) -> Connection:
        """Return the connection, remembered for the day of death."""
        self.connections.append(connection)
        return connection


@dataclass(slots=True)
class Platform:
    """One simulated platform."""

    options: Options
    loop: SimLoop
    clock: SimClock
    broker: MemoryBroker
    store: MemoryUsageStore
    faults: SeededFaults
    events: Events
    script: Script
    watch_step: "Callable[[SimWorker, list[StepOutput]], None]"
    """Called with what an engine made, before the worker gets it."""

    def now_s(self) -> float:
        """Return virtual seconds."""
        return self.loop.time()

    def fail(self, text: str) -> NoReturn:
        """End the run: something happened that must never happen. Raises Violation."""
        violation = Violation(text)
        self.loop.violate(violation)
        raise violation
