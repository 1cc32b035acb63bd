"""One run: a platform under one seed, its load, its faults, its healing, its verdict.

Owns which process lives and when it dies. The order of a run: start, load and chaos, heal, settle,
judge.
"""

import asyncio
from contextvars import Context
from dataclasses import dataclass
from functools import partial

from engine_workers.engine.script import Script
from infra.memory import InsertFault, MemoryBroker, MemoryUsageStore
from schemas.operations import ProcessState
from schemas.topics import topics, workers_group
from streams.metering.sink import GROUP
from tests.sim.chaos import Chaos
from tests.sim.checks import Checks
from tests.sim.clocks import SimClock
from tests.sim.codec_cache import coded_once
from tests.sim.crowd import Crowd
from tests.sim.events import Events
from tests.sim.faults import SESSION_MS, SeededFaults
from tests.sim.gateways import SimGateway, SimSink
from tests.sim.loop import SimLoop, Violation
from tests.sim.options import Options
from tests.sim.platform import EOS_ID, POOL, VOCABULARY, Platform
from tests.sim.strikes import Strikes
from tests.sim.tightness import tight_limits
from tests.sim.verdict import judge_the_end, starting_faults, unsettled
from tests.sim.workers import SimWorker

TICK_S = 0.3
IDLE_TICK_S = 1.0
BUSY_S = 0.5
"""Views are compared less often where nothing has been appended for so long."""
WARM_S = 0.3
"""By then workers have joined and said that they serve."""
HEAL_BOUND_S = 45.0
"""After healing, and after what was still in the network, everything ends within three
deadlines."""

SimProcess = SimWorker | SimGateway | SimSink


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to."""

    options: Options
    digest: str
    steps: int
    events: int
    strikes: int
    virtual_s: float
    fired: dict[str, int]
    violation: str | None

    @property
    def faults(self) -> int:
        """How many faults struck."""
        return sum(self.fired.values())


class World:
    """All of one run; `run` it once."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.loop = SimLoop(options.seed, shuffled=options.shuffled)
        self.events = Events()
        self.strikes = Strikes(options.only_strikes)
        self.faults = SeededFaults(options, self.loop.time, self.strikes)
        self.chaos = Chaos(self)
        clock = SimClock(self.loop)
        self.broker = MemoryBroker(clock, self.faults)
        self.platform = Platform(
            options=options,
            loop=self.loop,
            clock=clock,
            broker=self.broker,
            store=MemoryUsageStore(fault=self._insert_fault),
            faults=self.faults,
            events=self.events,
            script=Script(
                vocab_size=VOCABULARY,
                eos_id=EOS_ID,
                lowest_token_id=options.lowest_token,
                end_one_in=options.end_one_in,
                attempt_in_hash=True,
            ),
            watch_step=lambda worker, outputs: self.checks.on_step(worker, outputs),
        )
        self.checks = Checks(self.platform)
        self.crowd = Crowd(self)
        self.processes: dict[str, SimProcess] = {}
        self.clocks: dict[str, SimClock] = {}
        self._births: dict[str, int] = {}
        self._graves: list[SimProcess] = []
        self._over = False
        self._tick_at_s = 0.0

    def run(self) -> Outcome:
        """Run to the verdict; a violation is part of the outcome."""
        asyncio.set_event_loop(self.loop)
        violation: str | None = None
        try:
            coded = coded_once(real_bytes=self.options.real_bytes)
            with tight_limits(self.options.has("tight-limits")), coded:
                self.loop.run(self._live())
        except Violation as error:
            violation = str(error)
        outcome = Outcome(
            options=self.options,
            digest=self.events.digest(),
            steps=self.loop.steps,
            events=self.events.count,
            strikes=self.strikes.count,
            virtual_s=self.loop.time(),
            fired=dict(self.broker.fired + self.events.fired),
            violation=violation,
        )
        self.loop.clear(self._end)
        asyncio.set_event_loop(None)
        self._let_go()
        return outcome

    def _let_go(self) -> None:
        """Drop what a run has filled, so that little is left to a collection of cycles."""
        self._graves.clear()
        for part in (self.broker, self.checks, self.crowd, self.platform.events):
            vars(part).clear()

    def _end(self) -> None:
        """Leave nothing behind, also where a violation stopped everything in its midst."""
        self.chaos.active = self.faults.active = False
        self._over = True
        for name in list(self.processes):
            self.kill(name)

    def now_s(self) -> float:
        """Return virtual seconds."""
        return self.loop.time()

    # --- processes

    def names(self, kind: str = "") -> list[str]:
        """Return the names of the processes that a healthy platform has, of one kind."""
        options = self.options
        names = [f"gateway-{index}" for index in range(options.gateways)]
        names += [f"worker-{index}" for index in range(options.workers)]
        names.append("metering-0")
        return [name for name in names if name.startswith(kind)]

    def clock_of(self, name: str) -> SimClock:
        """Return the clock of a process, the same for all its lives."""
        return self.clocks.setdefault(name, SimClock(self.loop))

    def birth(self, name: str) -> None:
        """Start a process, unless it lives."""
        if name in self.processes or self._over:
            return
        number = self._births[name] = self._births.get(name, 0) + 1
        clock = self.clock_of(name)
        process: SimProcess
        if name.startswith("worker"):
            process = self.checks.workers[name] = SimWorker(self.platform, name, number, clock)
        elif name.startswith("gateway"):
            process = self.checks.gateways[name] = SimGateway(self.platform, name, number, clock)
        else:
            process = SimSink(self.platform, name, number, clock)
        self.processes[name] = process
        self.events.note(self.now_s(), f"{name} starts as {process.life.incarnation}")
        process.start().add_done_callback(partial(self._ended, process))

    def kill(self, name: str) -> None:
        """End a process as kill -9 does."""
        process = self.processes.pop(name, None)
        if process is None:
            return
        self.checks.workers.pop(name, None)
        self.checks.gateways.pop(name, None)
        self._graves.append(process)
        process.kill()

    def drain(self, name: str, timeout_s: float, back_in_s: float) -> bool:
        """Let a worker leave in good order and start anew; False where it cannot be asked."""
        process = self.processes.get(name)
        if not isinstance(process, SimWorker) or process.leaving or process.life.process.paused:
            return False
        if process.worker.state is not ProcessState.SERVING:
            return False
        left = process.drain(timeout_s)
        left.add_done_callback(partial(self._left, process, back_in_s))
        return True

    def _left(self, process: SimWorker, back_in_s: float, task: "asyncio.Task[None]") -> None:
        if process.life.process.dead:
            return
        self._ended(process, task)
        self.kill(process.name)
        self.loop.call_later(back_in_s, self.birth, process.name, context=Context())

    def pause(self, name: str, seconds: float) -> None:
        """Stop a process as SIGSTOP does; its group ejects it when its session has run out."""
        process = self.processes.get(name)
        if process is None or process.life.process.paused:
            return
        self.loop.pause(process.life.process)
        self.loop.call_later(SESSION_MS / 1000, self._eject, process)
        self.loop.call_later(seconds, self.loop.resume, process.life.process)

    def _eject(self, process: SimProcess) -> None:
        if not process.life.process.paused or process.life.process.dead:
            return
        if isinstance(process, SimWorker):
            member_id = process.worker.deps.group.member_id()
            self.broker.eject(workers_group(POOL), member_id or "")
        elif isinstance(process, SimSink):
            member_id = process.sink._group.member_id()
            self.broker.eject(GROUP, member_id or "")

    def _ended(self, process: SimProcess, task: "asyncio.Task[None]") -> None:
        if process.life.process.dead:
            return
        error = None if task.cancelled() else task.exception()
        if error is None and isinstance(process, SimWorker) and process.leaving:
            return
        if not isinstance(error, Violation):
            self.loop.violate(Violation(f"{process.name} died by itself: {error!r}"))

    def _insert_fault(self) -> InsertFault:
        self.chaos.on_insert()
        fault = self.faults.insert()
        if fault.delay_s:
            self.events.fault(self.now_s(), "store.slow", f"{fault.delay_s} s")
        if fault.fails:
            self.events.fault(self.now_s(), "store.unknown", "stored" if fault.stored else "lost")
        return fault

    # --- the run

    async def _live(self) -> None:
        for topic in topics(POOL):
            self.broker.create_topic(topic.name, topic.partitions, {})
        self.checks.listen()
        self.checks.faulty_until_s = float("inf")
        late = self.names("worker")[-1] if self.options.late_start else None
        for name in self.names():
            if name != late:
                self.birth(name)
        load_s = WARM_S + self.options.arrival_s
        if late is not None:
            self.loop.call_later((WARM_S + load_s) / 2, self.birth, late)
        self.crowd.begin(WARM_S)
        chaos_until_s = load_s + self.chaos.begin(WARM_S, load_s)
        while self.now_s() < chaos_until_s:
            await self._tick()
        self._heal()
        await self._settle()
        faults = starting_faults(self.broker.fired + self.events.fired)
        await judge_the_end(self.checks, self.crowd.clients, faults)
        self.crowd.count_manners()
        await self._bury_all()

    def _heal(self) -> None:
        self.faults.active = self.chaos.active = False
        for process in self.processes.values():
            self.loop.resume(process.life.process)
        for clock in self.clocks.values():
            clock.skew_ms = 0
        for name in self.names():
            self.birth(name)
        self.checks.faulty_until_s = max(self.now_s(), self.faults.quiet_from_s)
        self.events.note(self.now_s(), "healed")

    async def _settle(self) -> None:
        bound_s = self.checks.faulty_until_s + HEAL_BOUND_S
        waits: str | None = "for what is in the network"
        while self.now_s() < bound_s:
            await self._tick()
            if self.now_s() >= self.checks.faulty_until_s:
                waits = unsettled(self.checks, self.crowd.clients)
                if waits is None:
                    return
        self.checks.fail("I12", "", f"not at rest {HEAL_BOUND_S} s after healing: {waits}")

    async def _tick(self) -> None:
        await asyncio.sleep(TICK_S)
        if self.now_s() - self.checks.appended_s <= BUSY_S or self.now_s() >= self._tick_at_s:
            self._tick_at_s = self.now_s() + IDLE_TICK_S
            self.checks.on_tick()

    async def _bury_all(self) -> None:
        """End every process; none of them may cling to life."""
        for name in self.names():
            self.kill(name)
        await asyncio.sleep(1.0)
        for process in self._graves:
            if process.life.process.alive():
                raise Violation(f"{process.name} has tasks left after its end")
