"""A simulated worker process: the product's worker, pump and scripted engine on one loop."""

import asyncio
from collections import deque
from collections.abc import Sequence

from engine_workers.engine.port import StepOutput
from engine_workers.engine.scripted_engine import Model, ScriptedEngine
from engine_workers.pump import Command, EnginePump, Rejection
from engine_workers.worker import Worker, WorkerDeps
from infra.dead_letters import DeadLetters
from infra.ports import LogReader
from schemas.topics import workers_group
from tests.assembler_cases import ByteDecoder
from tests.sim.clocks import SimClock, SimEntropy
from tests.sim.faults import SEND_BOUND_MS, SESSION_MS
from tests.sim.loop import Process
from tests.sim.platform import CONTEXT_TOKENS, POOL, Life, Platform
from tests.sim.silence import SilentMetrics
from tests.sim.tightness import worker_bounds

IDLE_STEP_S = 0.001


class SimWorker:
    """One incarnation of one worker."""

    def __init__(self, platform: Platform, name: str, number: int, clock: SimClock) -> None:
        self.name = name
        self.platform = platform
        entropy = SimEntropy(f"{platform.options.seed}/{name}/{number}")
        self.life = Life(Process(name), clock, f"{name}/{entropy.uuid()}")
        self.engine = ScriptedEngine(
            platform.script,
            Model(
                step_s=platform.options.step_s,
                prefill_tokens_per_s=4_000,
                runs_max=8,
                context_tokens=CONTEXT_TOKENS,
            ),
            decode=ByteDecoder,
        )
        self.leaving = False
        self._wake = asyncio.Event()
        self._delivered: deque[tuple[list[StepOutput], list[Rejection]]] = deque()
        self.worker = Worker(self._deps(platform, entropy))
        self.pump = EnginePump(self.engine, self._deliver, clock)
        self.tail_reader = self.worker.deps.tail_reader

    def start(self) -> asyncio.Task[None]:
        """Run its tasks; return the one whose end would be the process's end."""
        loop, process = self.platform.loop, self.life.process
        self._reporting = loop.spawn(process, self.worker.report_forever())
        loop.spawn(process, self._drive())
        self._serving = loop.spawn(process, self.worker.serve())
        return self._serving

    def drain(self, timeout_s: float) -> asyncio.Task[None]:
        """Stop as an orderly process does; return the task that ends when it has left."""
        self.leaving = True
        return self.platform.loop.spawn(self.life.process, self._leave(timeout_s))

    async def _leave(self, timeout_s: float) -> None:
        await self.worker.drain(timeout_s)
        self._serving.cancel()
        self._reporting.cancel()
        await asyncio.gather(self._serving, self._reporting, return_exceptions=True)
        await self.worker.leave()

    def kill(self) -> None:
        """Die here and now."""
        for connection in self.life.connections:
            connection.kill()
        self.platform.loop.kill(self.life.process)

    def _deps(self, platform: Platform, entropy: SimEntropy) -> WorkerDeps:
        broker, name, life = platform.broker, self.name, self.life

        async def open_reader() -> LogReader:
            await asyncio.sleep(0)
            return life.keep(broker.reader(f"{name}:scan"))

        status = life.keep(
            broker.writer(f"{name}:status", idempotent=False, send_timeout_ms=SEND_BOUND_MS)
        )
        return WorkerDeps(
            process=name,
            incarnation=life.incarnation,
            pool=POOL,
            clock=life.clock,
            entropy=entropy,
            metrics=SilentMetrics(),
            group=life.keep(
                broker.group_reader(workers_group(POOL), name, session_timeout_ms=SESSION_MS)
            ),
            tail_reader=life.keep(broker.reader(f"{name}:tail")),
            fleet_reader=life.keep(broker.reader(f"{name}:fleet")),
            open_reader=open_reader,
            reply_writer=life.keep(broker.writer(f"{name}:replies", send_timeout_ms=SEND_BOUND_MS)),
            usage_writer=life.keep(
                broker.writer(f"{name}:usage", idempotent=False, send_timeout_ms=SEND_BOUND_MS)
            ),
            status_writer=status,
            bury=DeadLetters(status, life.clock, name).bury,
            submit=self._submit,
            consumed=self._consumed,
            stats=self.engine.stats,
            bounds=worker_bounds(),
        )

    def _submit(self, command: Command) -> None:
        self.pump.submit(command)
        self._wake.set()

    def _consumed(self) -> None:
        self.pump.consumed()
        self._wake.set()

    def _deliver(self, outputs: list[StepOutput], rejected: list[Rejection]) -> None:
        """Hand a step's outputs over as `call_soon_threadsafe` does: later, and in order."""
        self.platform.watch_step(self, outputs)
        self._delivered.append((outputs, rejected))
        self.platform.loop.call_soon(self._take_delivery)

    def _take_delivery(self) -> None:
        outputs, rejected = self._delivered.popleft()
        taken: Sequence[StepOutput] = outputs
        if not self.life.process.dead:
            self.worker.deliver(taken, rejected)

    async def _drive(self) -> None:
        """Turn the pump in virtual time; an idle engine waits for a command or a credit."""
        while True:
            if self.pump.run_once(0):
                await asyncio.sleep((self.engine.last_step_s or IDLE_STEP_S) + self._stall_s())
            else:
                self._wake.clear()
                await self._wake.wait()

    def _stall_s(self) -> float:
        platform = self.platform
        stall_s = platform.faults.engine_stall_s()
        if stall_s:
            platform.events.fault(platform.now_s(), "engine.stall", f"{self.name} {stall_s} s")
        return stall_s
