"""A simulated gateway process: the product's core without HTTP, and a simulated metering sink."""

import asyncio

from gateway.closing import Closer
from gateway.reader import ReplyReader
from gateway.rereading import RereadingPool
from gateway.submission import ServedModel, Submission
from infra.control import ControlView
from infra.dead_letters import DeadLetters
from infra.fleet import FleetReporter, FleetTail, FleetView
from infra.ports import LogReader
from schemas import limits
from schemas.operations import ControlRecord, ProcessReported, ProcessState, TopicCreated
from schemas.topics import REPLIES
from streams.metering.sink import GROUP, MeteringDeps, MeteringSink
from tests.sim.clocks import SimClock, SimEntropy
from tests.sim.faults import SEND_BOUND_MS, SESSION_MS
from tests.sim.loop import Process
from tests.sim.platform import CONTEXT_TOKENS, POOL, Life, Platform
from tests.sim.silence import SilentMetrics

ALIAS = "model"
ADMIT_WITHIN_MS = 3_000
DEADLINE_MS = 15_000


class SimGateway:
    """One incarnation of one gateway."""

    def __init__(self, platform: Platform, name: str, number: int, clock: SimClock) -> None:
        self.name = name
        self.platform = platform
        entropy = SimEntropy(f"{platform.options.seed}/{name}/{number}")
        life = self.life = Life(Process(name), clock, f"{name}/{entropy.uuid()}")
        broker = platform.broker
        control = ControlView()
        control.apply(
            ControlRecord(topic_created=TopicCreated(topic=REPLIES, partitions=4, incarnation=7))
        )
        self._view = FleetView()
        self._fleet_tail = FleetTail(life.keep(broker.reader(f"{name}:fleet")), self._view)
        self._status = life.keep(
            broker.writer(f"{name}:status", idempotent=False, send_timeout_ms=SEND_BOUND_MS)
        )
        self.reader = ReplyReader(
            reader=life.keep(broker.reader(f"{name}:replies")),
            partition=int(name.rpartition("-")[2]),
        )
        self.closer = Closer(
            writer=life.keep(
                broker.writer(f"{name}:closes", idempotent=False, send_timeout_ms=SEND_BOUND_MS)
            ),
            clock=clock,
            reader=self.reader,
            by=life.incarnation,
        )

        async def open_reader() -> LogReader:
            await asyncio.sleep(0)
            return life.keep(broker.reader(f"{name}:reread"))

        self.rereadings = RereadingPool(open_reader)
        self.submission = Submission(
            clock=clock,
            entropy=entropy,
            control=control,
            live_workers=lambda: self._view.live("worker", POOL),
            reader=self.reader,
            requests=life.keep(
                broker.writer(f"{name}:requests", idempotent=False, send_timeout_ms=SEND_BOUND_MS)
            ),
            closer=self.closer,
            rereadings=self.rereadings,
            gateway=life.incarnation,
            model=ServedModel(
                alias=ALIAS,
                model_version="v1",
                pool=POOL,
                context_tokens=CONTEXT_TOKENS,
                admit_within_ms=ADMIT_WITHIN_MS,
                deadline_ms=DEADLINE_MS,
            ),
            inflight_max=limits.GATEWAY_INFLIGHT_MAX,
        )

    def start(self) -> asyncio.Task[None]:
        """Run its tasks; return the one whose end would be the process's end."""
        loop, process = self.platform.loop, self.life.process
        loop.spawn(process, FleetReporter(self._status, self._report).run())
        loop.spawn(process, self._fleet_tail.run())
        return loop.spawn(process, self.reader.run())

    def kill(self) -> None:
        """Die here and now; clients see their connections reset."""
        for connection in self.life.connections:
            connection.kill()
        self.platform.loop.kill(self.life.process)

    def _report(self) -> ProcessReported:
        return ProcessReported(
            process=self.name,
            incarnation=self.life.incarnation,
            kind="gateway",
            state=ProcessState.SERVING,
            pool=POOL,
            running=self.submission.open_count,
        )


class SimSink:
    """One incarnation of the metering process."""

    def __init__(self, platform: Platform, name: str, number: int, clock: SimClock) -> None:
        self.name = name
        self.platform = platform
        life = self.life = Life(Process(name), clock, f"{name}/{number}")
        broker = platform.broker
        letters = life.keep(broker.writer(f"{name}:status", send_timeout_ms=SEND_BOUND_MS))
        self.sink = MeteringSink(
            MeteringDeps(
                group=life.keep(broker.group_reader(GROUP, name, session_timeout_ms=SESSION_MS)),
                store=platform.store,
                dead_letters=DeadLetters(letters, clock, name),
                clock=clock,
                metrics=SilentMetrics(),
            )
        )

    def start(self) -> asyncio.Task[None]:
        """Join and run; return the task whose end would be the process's end."""
        return self.platform.loop.spawn(self.life.process, self._run())

    def kill(self) -> None:
        """Die here and now."""
        for connection in self.life.connections:
            connection.kill()
        self.platform.loop.kill(self.life.process)

    async def _run(self) -> None:
        await self.sink.join()
        await self.sink.run()
