"""A worker with the scripted engine on the memory log, for tests that drive it by hand."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from engine_workers.engine.script import Script
from engine_workers.engine.scripted_engine import Model, ScriptedEngine
from engine_workers.pump import EnginePump
from engine_workers.worker import Worker, WorkerDeps
from infra.memory import MemoryBroker
from infra.metrics import Metrics
from infra.ports import LogReader, LogRecord, TopicPartition
from infra.system import SystemClock, SystemEntropy
from schemas.codec import decode, encode
from schemas.replies import Closed, Delta, ReplyRecord, Start, entry_of, fact_of
from schemas.requests import RequestAccepted
from schemas.topics import REPLIES, USAGE, requests_topic, topics, workers_group
from schemas.usage import UsageRecorded

POOL = "pool"
TOPIC = requests_topic(POOL)


@dataclass(slots=True)
class Bench:
    """The log under test and what a test does with it."""

    broker: MemoryBroker
    buried: list[tuple[LogRecord, str]] = field(default_factory=list)

    def read(self, topic: str, partition: int) -> list[LogRecord]:
        """Return all records of a partition."""
        log = self.broker.topics[topic].partitions[partition]
        return log.read(log.bounds().start, 1 << 30)

    def facts(self, partition: int = 0) -> list[Start | Delta | Closed]:
        """Return all reply facts of a partition in log order."""
        return [
            fact_of(entry)
            for record in self.read(REPLIES, partition)
            for entry in decode(record.value, ReplyRecord).entries
        ]

    def usage(self) -> list[UsageRecorded]:
        """Return all usage events."""
        partitions = range(len(self.broker.topics[USAGE].partitions))
        return [
            decode(record.value, UsageRecorded)
            for partition in partitions
            for record in self.read(USAGE, partition)
        ]

    async def submit(self, request: RequestAccepted) -> None:
        """Append a request to its lane."""
        await self.broker.writer("gateway").send(TOPIC, request.lane, encode(request))

    async def say(self, *facts: Start | Delta | Closed, partition: int = 0) -> None:
        """Append reply facts as one record, in somebody else's name."""
        record = ReplyRecord(entries=tuple(entry_of(fact) for fact in facts))
        await self.broker.writer("other").send(REPLIES, partition, encode(record))

    async def committed(self, lane: int = 0) -> int | None:
        """Return the group's commit of a lane."""
        offsets = await self.broker.admin().group_offsets(workers_group(POOL))
        return offsets.get(TopicPartition(TOPIC, lane))


def make_bench() -> Bench:
    """Return a broker with all topics."""
    broker = MemoryBroker(SystemClock())
    for topic in topics(POOL):
        broker.create_topic(topic.name, topic.partitions, {})
    return Bench(broker=broker)


@asynccontextmanager
async def running_worker(
    bench: Bench, name: str = "worker-0", *, crash: tuple[int, asyncio.Event] | None = None
) -> AsyncIterator[Worker]:
    """Run a worker and its pump until the block ends; it dies there without leaving the group.

    Args: `crash` is the token that ends the pump, and what is set then.
    """
    broker, clock, entropy = bench.broker, SystemClock(), SystemEntropy()

    def die() -> None:
        assert crash is not None
        crash[1].set()
        raise asyncio.CancelledError

    engine = ScriptedEngine(
        Script(vocab_size=1_000, eos_id=2),
        Model(crash_token_id=crash[0] if crash else None),
        crash=die,
    )
    pump: EnginePump

    async def open_reader() -> LogReader:
        return broker.reader(f"{name}-scan")

    async def bury(record: LogRecord, reason: str) -> bool:
        bench.buried.append((record, reason))
        return True

    worker = Worker(
        WorkerDeps(
            process=name,
            incarnation=f"{name}/{entropy.uuid()}",
            pool=POOL,
            clock=clock,
            entropy=entropy,
            metrics=Metrics(),
            group=broker.group_reader(workers_group(POOL), name),
            tail_reader=broker.reader(f"{name}-tail"),
            fleet_reader=broker.reader(f"{name}-fleet"),
            open_reader=open_reader,
            reply_writer=broker.writer(f"{name}-replies"),
            usage_writer=broker.writer(f"{name}-usage"),
            status_writer=broker.writer(f"{name}-status"),
            bury=bury,
            submit=lambda command: pump.submit(command),
            consumed=lambda: pump.consumed(),
            stats=engine.stats,
        )
    )
    pump = EnginePump(engine, worker.deliver, clock)
    tasks = [asyncio.create_task(worker.serve()), asyncio.create_task(_turn(pump))]
    try:
        yield worker
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(true: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Wait until `true()` holds."""
    async with asyncio.timeout(timeout_s):
        while not true():  # noqa: ASYNC110  # what is watched has no event to wait for
            await asyncio.sleep(0.005)


async def _turn(pump: EnginePump) -> None:
    while True:
        pump.run_once(0)
        await asyncio.sleep(0.001)
