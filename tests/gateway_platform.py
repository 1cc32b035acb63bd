"""A platform in memory for the gateway's tests: broker, core, and a worker that follows a script.

The worker is a few lines: it takes request records and appends starts, deltas and ends as its
script says. It checks nothing; what counts is the gateway.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gateway.closing import Closer
from gateway.live_reply import LiveReply
from gateway.parts import Parts, Wiring, build_parts
from gateway.reader import ReplyReader
from gateway.submission import ServedModel, Submission
from infra.control import ControlView
from infra.memory import MemoryBroker
from infra.ports import LogReader, LogWriter, TopicPartition
from infra.system import SystemEntropy
from infra.watched_writer import Pulse, WatchedWriter
from schemas import limits
from schemas.codec import decode, encode
from schemas.dialects.canonical import CanonicalMessage, CanonicalRequest
from schemas.operations import ControlRecord, ProcessReported, ProcessState, TopicCreated
from schemas.replies import (
    ChoiceTokens,
    Closed,
    CloseReason,
    Delta,
    Entry,
    ReplyRecord,
    StageTimes,
    Start,
    Stop,
    StopReason,
    Terminal,
)
from schemas.requests import Dialect, Identity, RequestAccepted
from schemas.topics import REPLIES, requests_topic, topics
from tests.contract.virtual_time import LoopClock

POOL = "test"
IDENTITY = Identity(org="acme", workspace="default", key_id="key_1")
WORKER = ProcessReported(
    process="worker-0",
    incarnation="worker-0/1",
    kind="worker",
    state=ProcessState.SERVING,
    pool=POOL,
    lanes=tuple(range(limits.LANES)),
)

Script = Callable[["FakeWorker", RequestAccepted], Awaitable[None]]


def canonical(max_tokens: int | None = 8, **fields: object) -> CanonicalRequest:
    """Return a small well-formed request."""
    values: dict[str, object] = {
        "dialect": Dialect.ANTHROPIC,
        "dialect_version": "2023-06-01",
        "model": "m",
        "messages": (CanonicalMessage(role="user", text="hi"),),
        "max_tokens": max_tokens,
        "stream": True,
    }
    return CanonicalRequest(**{**values, **fields})  # type: ignore[arg-type] # test builder


@dataclass
class FakeWorker:
    """Appends what a script says for each request it meets, in one record per call."""

    writer: LogWriter
    script: Script
    seen: list[RequestAccepted] = field(default_factory=list)
    answered: set[str] = field(default_factory=set)
    closes: list[Closed] = field(default_factory=list)
    written: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    cached_tokens: int = 0
    """What the first tokens of each reply tell."""

    async def append(self, request: RequestAccepted, *entries: Entry) -> None:
        """Append one record to the request's reply partition."""
        value = encode(ReplyRecord(entries=entries))
        await self.writer.send(REPLIES, request.locator.partition, value)

    async def start(self, request: RequestAccepted, attempt: str = "a1") -> None:
        """Open an attempt."""
        start = Start(
            request_id=request.request_id,
            attempt=attempt,
            worker="worker-0/1",
            header=request.header,
            identity=request.identity,
            placement=request.placement,
        )
        await self.append(request, Entry(start=start))

    async def say(
        self,
        request: RequestAccepted,
        *token_ids: int,
        stop: StopReason | None = None,
        attempt: str = "a1",
    ) -> None:
        """Append the next tokens; with `stop`, also the terminal."""
        held = self.tokens.setdefault(request.request_id, [])
        first = len(held)
        held.extend(token_ids)
        terminal = None
        if stop is not None:
            terminal = Terminal(
                stops=(Stop(reason=stop),),
                stages=StageTimes(taken_ms=1, started_ms=1, first_token_ms=1, finished_ms=1),
                tokens=(ChoiceTokens(segment=0, choice=0, token_ids=tuple(held)),),
            )
        delta = Delta(
            request_id=request.request_id,
            attempt=attempt,
            segment=0,
            choice=0,
            first_index=first,
            token_ids=token_ids,
            cached_tokens=self.cached_tokens if first == 0 and token_ids else None,
            stop=Stop(reason=stop) if stop else None,
            terminal=terminal,
        )
        await self.append(request, Entry(delta=delta))

    async def close(self, request: RequestAccepted, reason: CloseReason) -> None:
        """Close the reply as a worker would."""
        closed = Closed(
            request_id=request.request_id,
            reason=reason,
            by="worker-0/1",
            header=request.header,
            identity=request.identity,
            placement=request.placement,
        )
        await self.append(request, Entry(closed=closed))

    async def run(self, requests: LogReader, replies: LogReader) -> None:
        """Answer every request record by the script, and note closes."""
        requests.assign(
            {TopicPartition(requests_topic(POOL), lane): 0 for lane in range(limits.LANES)}
        )
        replies.assign({TopicPartition(REPLIES, p): 0 for p in range(limits.REPLY_PARTITIONS)})
        async with asyncio.TaskGroup() as group:
            group.create_task(self._note_closes(replies))
            while True:
                for record in await requests.poll(timeout_ms=1_000, max_records=100):
                    request = decode(record.value, RequestAccepted)
                    self.seen.append(request)
                    group.create_task(self._answer(request))

    async def _answer(self, request: RequestAccepted) -> None:
        """Follow the script once for each id: a copy of a request in flight or ended is no work."""
        if request.request_id not in self.answered:
            self.answered.add(request.request_id)
            await self.script(self, request)

    async def _note_closes(self, replies: LogReader) -> None:
        while True:
            for record in await replies.poll(timeout_ms=1_000, max_records=1_000):
                for entry in decode(record.value, ReplyRecord).entries:
                    if entry.closed is not None:
                        self.closes.append(entry.closed)


@dataclass(kw_only=True)
class Platform:
    """The gateway's core on a memory broker, beside a fake worker."""

    broker: MemoryBroker
    control: ControlView
    gateways: list[Parts]
    running: list[list[asyncio.Task[None]]]
    """Background tasks by gateway."""
    worker: FakeWorker
    workers: list[ProcessReported]

    @property
    def reader(self) -> ReplyReader:
        """The first gateway's."""
        return self.gateways[0].replies

    @property
    def closer(self) -> Closer:
        """The first gateway's."""
        return self.gateways[0].closer

    @property
    def submission(self) -> Submission:
        """The first gateway's."""
        return self.gateways[0].submission

    def truncate(self, partition: int) -> None:
        """Let retention take all that stands in a reply partition."""
        place = TopicPartition(REPLIES, partition)
        self.broker.truncate(place, self.broker.partition(place).bounds().end)

    async def kill(self, number: int) -> None:
        """End a gateway's tasks here and now."""
        for task in self.running[number]:
            task.cancel()
        await asyncio.gather(*self.running[number], return_exceptions=True)
        await self.gateways[number].stop(0)


async def answer_hello(worker: FakeWorker, request: RequestAccepted) -> None:
    """Start, say three tokens one by one, end."""
    await worker.start(request)
    for token in (72, 105):
        await worker.say(request, token)
    await worker.say(request, 33, stop=StopReason.END)


async def stay_silent(worker: FakeWorker, request: RequestAccepted) -> None:
    """Take the request and never answer."""


@asynccontextmanager
async def platform(
    script: Script = answer_hello,
    *,
    context_tokens: int = 64,
    admit_within_ms: int = limits.ADMIT_WITHIN_MS,
    deadline_ms: int = limits.DEADLINE_MS,
    broker: MemoryBroker | None = None,
    send_timeout_ms: int = limits.SEND_TIMEOUT_MS,
    gateway_count: int = 1,
    grace_ms: int = limits.RESUMABLE_GRACE_MS,
) -> AsyncIterator[Platform]:
    """Run a platform; its tasks end with the block."""
    broker = broker or MemoryBroker(LoopClock())
    for topic in topics(POOL):
        broker.create_topic(topic.name, topic.partitions, {})
    control = ControlView()
    control.apply(
        ControlRecord(topic_created=TopicCreated(topic=REPLIES, partitions=4, incarnation=7))
    )
    workers = [WORKER]
    model = ServedModel(
        alias="m",
        model_version="m-1",
        pool=POOL,
        context_tokens=context_tokens,
        admit_within_ms=admit_within_ms,
        deadline_ms=deadline_ms,
    )
    gateways = [
        _gateway(broker, number, control, workers, model, send_timeout_ms, grace_ms)
        for number in range(gateway_count)
    ]
    worker = FakeWorker(writer=broker.writer("worker"), script=script)
    running = [await _run(parts) for parts in gateways]
    tasks = [
        asyncio.create_task(worker.run(broker.reader("w-requests"), broker.reader("w-replies"))),
        *(task for tasks in running for task in tasks),
    ]
    try:
        yield Platform(
            broker=broker,
            control=control,
            gateways=gateways,
            running=running,
            worker=worker,
            workers=workers,
        )
    finally:
        for parts in gateways:
            await parts.stop(0.2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _gateway(
    broker: MemoryBroker,
    number: int,
    control: ControlView,
    workers: list[ProcessReported],
    model: ServedModel,
    send_timeout_ms: int,
    grace_ms: int,
) -> Parts:
    name = "gateway" if number == 0 else f"gateway{number}"

    async def open_reader() -> LogReader:
        return broker.reader(f"{name}-reread")

    def writer(purpose: str) -> LogWriter:
        return broker.writer(f"{name}-{purpose}", send_timeout_ms=send_timeout_ms)

    clock = LoopClock()
    pulse = Pulse(clock)
    return build_parts(
        Wiring(
            clock=clock,
            entropy=SystemEntropy(),
            control=control,
            live_workers=lambda: tuple(workers),
            partition=number,
            reply_reader=broker.reader(name),
            claim_reader=broker.reader(f"{name}-claims"),
            open_reader=open_reader,
            requests=WatchedWriter(writer("requests"), pulse),
            closes=writer("closes"),
            claims=writer("claims"),
            gateway=f"gateway-{number}/1",
            model=model,
            grace_ms=grace_ms,
            log_silent_s=pulse.silent_s,
        )
    )


async def _run(parts: Parts) -> list[asyncio.Task[None]]:
    await parts.replies.start()
    return [
        asyncio.create_task(parts.replies.run()),
        asyncio.create_task(parts.claim_tail.run()),
        asyncio.create_task(parts.run()),
    ]


async def until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    """Wait until something holds; fail after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 # what is watched has no event of its own
            await asyncio.sleep(0.005)


async def read_to_end(reply: LiveReply) -> list[int]:
    """Take until the end; return all token ids."""
    tokens: list[int] = []
    async with asyncio.timeout(10):
        while reply.end is None:
            for chunk in await reply.take(1_000):
                tokens.extend(chunk.token_ids)
    return tokens
