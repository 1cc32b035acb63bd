"""The sink on the memory log and store: order of its steps, faults of the store, rebalances,
poison."""

import asyncio
from collections.abc import Iterator, Sequence

from infra.dead_letters import DeadLetters
from infra.errors import StoreRejected
from infra.memory import InsertFault, MemoryBroker, MemoryUsageStore
from infra.metrics import Metrics
from infra.ports import TopicPartition, UsageRow
from schemas import limits
from schemas.codec import decode, encode
from schemas.operations import DeadLetter
from schemas.topics import DEAD_LETTERS, USAGE
from streams.metering import MeteringDeps, MeteringSink
from tests.contract.store_suite import usage_row
from tests.contract.virtual_time import LoopClock, run_virtually

PLACE = TopicPartition(USAGE, 0)


class Scene:
    """A broker with the topics, a store, and sinks of the group."""

    def __init__(self, store: MemoryUsageStore | None = None) -> None:
        self.clock = LoopClock()
        self.broker = MemoryBroker(self.clock)
        self.broker.create_topic(USAGE, 2, {})
        self.broker.create_topic(DEAD_LETTERS, 1, {})
        self.store = store or MemoryUsageStore()
        self.writer = self.broker.writer("worker-0")
        self.member_ids: dict[MeteringSink, str] = {}

    async def sink(self, name: str = "metering-0") -> MeteringSink:
        """Return a sink that has joined."""
        group = self.broker.group_reader("metering", name)
        sink = MeteringSink(
            MeteringDeps(
                group=group,
                store=self.store,
                dead_letters=DeadLetters(self.writer, self.clock, name),
                clock=self.clock,
                metrics=Metrics(),
            )
        )
        await sink.join()
        self.member_ids[sink] = group.member_id() or ""
        return sink

    def is_member(self, sink: MeteringSink) -> bool:
        """Tell whether the group still counts this sink."""
        return self.broker.groups["metering"].has(self.member_ids[sink])

    async def publish(self, *numbers: int, partition: int = 0) -> None:
        """Append the usage events of these requests."""
        for number in numbers:
            await self.writer.send(USAGE, partition, encode(usage_row(number).usage))

    async def committed(self) -> int:
        """Return the group's commit of partition 0."""
        return (await self.broker.admin().group_offsets("metering")).get(PLACE, 0)

    async def stored_ids(self) -> list[int]:
        """Return the numbers of the requests that are stored."""
        return [int(row.usage.request_id[-12:]) for row in await self.store.rows()]


async def _turns(sink: MeteringSink, seconds: float) -> None:
    """Let a sink turn for so long."""
    task = asyncio.create_task(sink.run())
    await asyncio.sleep(seconds)
    if task.done():
        task.result()  # it never ends by itself: raises what ended it
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_rows_are_stored_within_two_seconds_and_then_committed() -> None:
    """Events become rows within 2 s, with their place on the log, and the offset is committed."""

    async def work() -> None:
        scene = Scene()
        sink = await scene.sink()
        await scene.publish(1, 2, 3)
        task = asyncio.create_task(sink.run())
        await asyncio.sleep(1)
        assert await scene.stored_ids() == [1, 2, 3]
        assert [row.offset for row in await scene.store.rows()] == [0, 1, 2]
        await asyncio.sleep(2)
        assert await scene.committed() == 3
        assert len(scene.store.refreshed) == 1
        await scene.publish(4)
        await asyncio.sleep(2)
        assert await scene.stored_ids() == [1, 2, 3, 4]
        task.cancel()

    run_virtually(work())


def test_nothing_is_committed_while_the_store_is_away() -> None:
    """While inserts fail nothing is committed; the same rows go in once it is back."""

    async def work() -> None:
        up: list[bool] = []
        store = MemoryUsageStore(fault=lambda: InsertFault(stored=bool(up), fails=not up))
        scene = Scene(store)
        sink = await scene.sink()
        await scene.publish(1, 2)
        task = asyncio.create_task(sink.run())
        await asyncio.sleep(120)
        assert await scene.committed() == 0
        assert not sink.is_ready
        assert scene.is_member(sink), "it polls on, so the group keeps it"
        up.append(True)
        await asyncio.sleep(2 * limits.METERING_RETRY_MS_MAX / 1_000)
        assert await scene.stored_ids() == [1, 2]
        assert await scene.committed() == 2
        assert sink.is_ready
        task.cancel()

    run_virtually(work())


def test_an_insert_of_unknown_outcome_is_repeated_and_collapses() -> None:
    """An insert that was stored and reported as failed is repeated; each row reads once."""

    async def work() -> None:
        faults: Iterator[InsertFault] = iter([InsertFault(fails=True, delay_s=0.5)])
        store = MemoryUsageStore(fault=lambda: next(faults, InsertFault()))
        scene = Scene(store)
        await scene.publish(1, 2)
        await _turns(await scene.sink(), 5)
        assert await scene.stored_ids() == [1, 2]
        assert await store.physical_count() == 4
        assert await scene.committed() == 2

    run_virtually(work())


def test_a_crash_between_insert_and_commit_loses_and_doubles_nothing() -> None:
    """A sink killed after its insert is succeeded by one that reads the same events again."""

    async def work() -> None:
        scene = Scene()
        await scene.publish(1, 2, 3)
        await _turns(await scene.sink("metering-0"), 0.5)  # inserted, commit not yet due
        scene.broker.groups["metering"].rebalance()
        await scene.publish(4)
        await _turns(await scene.sink("metering-1"), 30)
        assert await scene.stored_ids() == [1, 2, 3, 4]
        assert list(await scene.store.disputed()) == []

    run_virtually(work())


def test_two_members_share_partitions_and_survive_rebalances() -> None:
    """Members that come and go while events flow store every event, and commit all in the end."""

    async def work() -> None:
        scene = Scene()
        first = asyncio.create_task((await scene.sink("metering-0")).run())
        for number in range(20):
            await scene.publish(number, partition=number % 2)
            await asyncio.sleep(0.1)
        second = asyncio.create_task((await scene.sink("metering-1")).run())
        for number in range(20, 60):
            await scene.publish(number, partition=number % 2)
            await asyncio.sleep(0.1)
        first.cancel()
        await asyncio.sleep(60)
        second.cancel()
        assert await scene.stored_ids() == list(range(60))
        offsets = await scene.broker.admin().group_offsets("metering")
        assert sum(offsets.values()) == 60

    run_virtually(work())


def test_poison_is_buried_and_passed() -> None:
    """A record that is no usage event goes to the dead letters with its place; its neighbours
    count."""

    async def work() -> None:
        scene = Scene()
        await scene.publish(1)
        await scene.writer.send(USAGE, 0, b"not avro")
        await scene.publish(2)
        await _turns(await scene.sink(), 5)
        assert await scene.stored_ids() == [1, 2]
        assert await scene.committed() == 3
        letter = (await _dead_letters(scene))[0]
        assert (letter.topic, letter.partition, letter.offset) == (USAGE, 0, 1)
        assert letter.value == b"not avro"

    run_virtually(work())


def test_a_flood_of_poison_waits_for_the_limit() -> None:
    """Past the limit of dead letters the sink waits instead of passing over records."""

    async def work() -> None:
        scene = Scene()
        for _ in range(limits.DEAD_LETTERS_PER_MINUTE_MAX + 50):
            await scene.writer.send(USAGE, 0, b"bad")
        await scene.publish(1)
        sink = await scene.sink()
        task = asyncio.create_task(sink.run())
        await asyncio.sleep(10)
        assert len(await _dead_letters(scene)) == limits.DEAD_LETTERS_PER_MINUTE_MAX
        assert await scene.stored_ids() == []
        await asyncio.sleep(70)
        assert len(await _dead_letters(scene)) == limits.DEAD_LETTERS_PER_MINUTE_MAX + 50
        assert await scene.stored_ids() == [1]
        task.cancel()

    run_virtually(work())


class PickyStore(MemoryUsageStore):
    """Refuses one request's row, as a table with another schema might."""

    async def insert(self, rows: Sequence[UsageRow]) -> None:
        """Refuse a batch that holds request 5."""
        if any(row.usage.request_id.endswith("5") for row in rows):
            raise StoreRejected("no room for 5")
        await super().insert(rows)


def test_a_row_that_the_store_refuses_is_buried_alone() -> None:
    """Of a refused batch only the row at fault is buried; all others are stored."""

    async def work() -> None:
        scene = Scene(PickyStore())
        await scene.publish(*range(1, 10))
        await _turns(await scene.sink(), 5)
        assert await scene.stored_ids() == [1, 2, 3, 4, 6, 7, 8, 9]
        assert [letter.offset for letter in await _dead_letters(scene)] == [4]
        assert await scene.committed() == 9

    run_virtually(work())


def test_draining_stores_and_commits_what_was_read() -> None:
    """An orderly stop inserts and commits what it holds, and leaves the group."""

    async def work() -> None:
        scene = Scene()
        await scene.publish(1, 2)
        sink = await scene.sink()
        await sink.run_once()
        await sink.run_once()
        await sink.drain()
        assert await scene.stored_ids() == [1, 2]
        assert await scene.committed() == 2
        assert not scene.is_member(sink)

    run_virtually(work())


async def _dead_letters(scene: Scene) -> list[DeadLetter]:
    reader = scene.broker.reader("operator")
    reader.assign({TopicPartition(DEAD_LETTERS, 0): 0})
    records = await reader.poll(timeout_ms=1, max_records=10_000)
    await reader.close()
    return [decode(record.value, DeadLetter) for record in records]
