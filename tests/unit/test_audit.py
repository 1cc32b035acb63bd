"""The audit over the memory log and store: reading, waiting, explaining."""

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from infra.audit import AuditDeps, Kind, audit
from infra.dead_letters import DeadLetters
from infra.memory import MemoryBroker, MemoryUsageStore
from infra.metrics import Metrics
from schemas.codec import encode
from schemas.fold import ReplyFold
from schemas.replies import CloseReason, ReplyRecord, entry_of, fact_of
from schemas.topics import REPLIES, USAGE, requests_topic
from schemas.usage import UsageRecorded, usage_of
from streams.metering import MeteringDeps, MeteringSink
from tests.builders import closed, delta, request, start
from tests.contract.store_suite import usage_row
from tests.contract.virtual_time import LoopClock, run_virtually

REQUESTS = requests_topic("pool")


def request_id(number: int) -> str:
    """Return the id of request `number`."""
    return f"00000000-0000-4000-8000-{number:012d}"


class Platform:
    """The log, a store, a sink, and hands that play gateway and worker."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.broker = MemoryBroker(self.clock)
        for name, partitions in ((REQUESTS, 2), (REPLIES, 2), (USAGE, 2), ("dead-letters.v1", 1)):
            self.broker.create_topic(name, partitions, {})
        self.store = MemoryUsageStore()
        self.writer = self.broker.writer("worker-0")
        self.folds: dict[str, ReplyFold] = {}

    def deps(self) -> AuditDeps:
        """Return what the audit reads."""
        return AuditDeps(
            reader=self.broker.reader("audit"),
            admin=self.broker.admin(),
            store=self.store,
            clock=self.clock,
            wait_s=20,
        )

    async def accept(self, number: int) -> None:
        """Land a request record."""
        value = encode(request(request_id(number), floor=0))
        await self.writer.send(REQUESTS, 0, value)

    async def reply(self, *entries: object) -> None:
        """Append one record of reply facts."""
        record = ReplyRecord(entries=tuple(entry_of(entry) for entry in entries))  # type: ignore[arg-type]  # facts
        appended = await self.writer.send(REPLIES, 0, encode(record))
        for entry in record.entries:
            fact = fact_of(entry)
            fold = self.folds.setdefault(fact.request_id, ReplyFold())
            fold.apply(fact, appended.append_time_ms)

    async def meter(self, number: int, times: int = 1) -> None:
        """Append the usage event of an ended reply."""
        usage = usage_of(request_id(number), self.folds[request_id(number)])
        for _ in range(times):
            await self.writer.send(USAGE, 0, encode(usage))

    async def serve(self, number: int) -> None:
        """Accept, generate two tokens in two records, end, meter."""
        await self.accept(number)
        name = request_id(number)
        await self.reply(start(request_id=name))
        await self.reply(delta(0, 5, request_id=name))
        await self.reply(delta(1, 6, request_id=name, ends_with=(5, 6)))
        await self.meter(number)

    async def sink(self) -> "asyncio.Task[None]":
        """Start metering."""
        sink = MeteringSink(
            MeteringDeps(
                group=self.broker.group_reader("metering", "metering-0"),
                store=self.store,
                dead_letters=DeadLetters(self.writer, self.clock, "metering-0"),
                clock=self.clock,
                metrics=Metrics(),
            )
        )
        await sink.join()
        return asyncio.create_task(sink.run())


def _with_platform(work: Callable[[Platform], Awaitable[None]]) -> None:
    async def session() -> None:
        platform = Platform()
        metering = await platform.sink()
        await work(platform)
        metering.cancel()
        await asyncio.gather(metering, return_exceptions=True)

    run_virtually(session())


def test_a_healthy_platform_agrees() -> None:
    """Ended, closed, doubly metered and unfinished requests all hold together."""

    async def work(platform: Platform) -> None:
        for number in range(5):
            await platform.serve(number)
        await platform.meter(3, times=2)
        await platform.accept(7)
        await platform.reply(closed(CloseReason.LATE, request_id=request_id(7)))
        await platform.meter(7)
        await platform.accept(8)  # unfinished
        await platform.reply(start(request_id=request_id(8)))
        await platform.reply(closed(request_id=request_id(9)))  # its record never landed
        report = await audit(platform.deps())
        assert report.differences == ()
        assert (report.requests, report.unfinished, report.rows) == (6, 1, 6)
        assert (report.usage_events, report.output_tokens) == (8, 10)

    _with_platform(work)


def test_it_waits_for_metering_within_its_bound() -> None:
    """Usage that comes some seconds later is waited for; a sink that is away is named."""

    async def work(platform: Platform) -> None:
        await platform.serve(1)
        await platform.accept(2)
        await platform.reply(closed(request_id=request_id(2)))
        running = asyncio.create_task(audit(platform.deps()))
        await asyncio.sleep(5)
        await platform.meter(2)
        report = await running
        assert report.differences == ()
        assert report.waited_s >= 5

    _with_platform(work)

    async def without_sink() -> None:
        platform = Platform()
        await platform.serve(1)
        report = await audit(platform.deps())
        assert [one.kind for one in report.differences] == [Kind.MISSING_ROW, Kind.BEHIND]

    run_virtually(without_sink())


def test_a_reply_that_was_never_metered_is_named() -> None:
    """An ended reply whose record landed needs a usage event, also with zero tokens."""

    async def work(platform: Platform) -> None:
        await platform.accept(1)
        await platform.reply(closed(request_id=request_id(1)))
        report = await audit(platform.deps())
        assert [(one.request_id, one.kind) for one in report.differences] == [
            (request_id(1), Kind.NOT_METERED)
        ]

    _with_platform(work)


def test_usage_from_a_workers_memory_is_found() -> None:
    """A usage event that counts tokens which the fold does not accept is named with the column."""

    async def work(platform: Platform) -> None:
        await platform.accept(1)
        name = request_id(1)
        await platform.reply(start("a", request_id=name), delta(0, 5, request_id=name))
        await platform.reply(start("b", request_id=name))
        await platform.reply(delta(1, 6, attempt="a", request_id=name))  # does not count
        await platform.reply(closed(request_id=name))
        right = usage_of(name, platform.folds[name])
        assert right.output_tokens == 1
        wrong: UsageRecorded = replace(right, output_tokens=2)
        await platform.writer.send(USAGE, 0, encode(wrong))
        report = await audit(platform.deps())
        assert [one.kind for one in report.differences] == [Kind.WRONGLY_METERED]
        assert "output_tokens: 2 instead of 1" in report.differences[0].details

    _with_platform(work)


def test_hands_on_the_table_are_found() -> None:
    """Deleting, changing and adding rows each end in 1 and name the request; a copy is legal."""

    async def work(platform: Platform) -> None:
        for number in range(3):
            await platform.serve(number)
        await asyncio.sleep(5)
        row = (await platform.store.rows(request_id(0)))[0]
        await platform.store.insert([row])
        copied = await audit(platform.deps())
        assert (copied.exit_code, copied.collapsed) == (0, 1)
        platform.store.delete(request_id(0))
        platform.store.change(request_id(1), input_tokens=4)
        await platform.store.insert([usage_row(77)])
        report = await audit(platform.deps())
        assert {one.request_id: one.kind for one in report.differences} == {
            request_id(0): Kind.MISSING_ROW,
            request_id(1): Kind.DIFFERENT_ROW,
            request_id(77): Kind.UNKNOWN_ROW,
        }

    _with_platform(work)


def test_traffic_during_the_audit_is_no_difference() -> None:
    """Requests that are served while the audit reads leave it at 0."""

    async def work(platform: Platform) -> None:
        async def traffic() -> None:
            for number in range(400):
                await platform.serve(number)
                await asyncio.sleep(0.05)

        flowing = asyncio.create_task(traffic())
        for _ in range(8):
            await asyncio.sleep(2)
            assert (await audit(platform.deps())).differences == ()
        await flowing

    _with_platform(work)


def test_one_request_is_explained() -> None:
    """`--request` tells its events in order, which counted, and its row."""

    async def work(platform: Platform) -> None:
        await platform.serve(1)
        await platform.reply(delta(2, 9, request_id=request_id(1)))
        await platform.serve(2)
        await asyncio.sleep(5)
        lines = (await audit(platform.deps(), request_id(1))).explanation
        text = "\n".join(lines)
        assert request_id(2) not in text
        assert [line.rsplit(", ", 1)[1] for line in lines if "attempt" in line] == [
            "counted",
            "counted",
            "counted",
            "did not count",
        ]
        assert "ClickHouse: row from usage.v1 0@0" in text
        nothing = (await audit(platform.deps(), request_id(99))).explanation
        assert "nothing on the log" in "\n".join(nothing)
        assert "ClickHouse: no row" in nothing

    _with_platform(work)
