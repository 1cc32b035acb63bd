"""The quota service on the memory log: one answer each, reigns, a successor that stands by."""

import asyncio

from gateway.ask import Ask
from gateway.lease import OrgLease
from infra.dead_letters import DeadLetters
from infra.memory import MemoryBroker
from infra.metrics import Metrics
from infra.ports import TopicPartition
from schemas import limits
from schemas.codec import decode, encode
from schemas.operations import LimitsSet
from schemas.quota import QuotaGranted, limits_of
from schemas.topics import DEAD_LETTERS, QUOTA_DEMANDS, QUOTA_GRANTS, topics
from streams.stream_app.quota import QuotaService
from tests.contract.virtual_time import LoopClock, run_virtually

ONE = Ask(amounts=(1, 0, 0, 0))


def log() -> MemoryBroker:
    """Return a log with all topics."""
    broker = MemoryBroker(LoopClock())
    for topic in topics("test"):
        broker.create_topic(topic.name, topic.partitions, {})
    return broker


def service(broker: MemoryBroker, name: str) -> QuotaService:
    """Return a service that has not begun."""
    return QuotaService(
        reader=broker.reader(f"{name}-demands"),
        writer=broker.writer(f"{name}-grants"),
        service=name,
        dead_letters=DeadLetters(broker.writer(f"{name}-dead"), LoopClock(), name),
        metrics=Metrics(),
    )


def lease() -> OrgLease:
    """Return a gateway's lease on six requests a minute."""
    fact = LimitsSet(org="acme", set_ms=0, requests_per_minute=6)
    return OrgLease(limits_of(fact, 1), "gateway-0/1")


async def grants(broker: MemoryBroker) -> list[QuotaGranted]:
    """Return all grants in the log, beginnings left out."""
    reader, place = broker.reader("test"), TopicPartition(QUOTA_GRANTS, 0)
    reader.assign({place: 0})
    found = [decode(r.value, QuotaGranted) for r in await reader.poll(timeout_ms=1, max_records=99)]
    return [grant for grant in found if grant.org]


def test_a_demand_is_answered_once_and_what_nobody_can_read_is_buried() -> None:
    """Copies get no second grant; a record that is no demand stops nothing."""

    async def scenario() -> None:
        broker = log()
        made, writer = service(broker, "a"), broker.writer("gateway")
        await made.begin()
        value = encode(lease().demand(0.0))
        for record in (b"nonsense", value, value):
            await writer.send(QUOTA_DEMANDS, 0, record)
        await made.run_once()
        await asyncio.sleep(0.1)
        assert [grant.seq for grant in await grants(broker)] == [1]
        assert broker.partition(TopicPartition(DEAD_LETTERS, 0)).bounds().end == 1

    run_virtually(scenario())


def test_a_service_stands_by_for_a_later_one_and_takes_over_from_its_silence() -> None:
    """Who began last answers; when demands stay unanswered, the other begins anew."""

    async def scenario() -> None:
        broker = log()
        first, second, writer = service(broker, "a"), service(broker, "b"), broker.writer("gateway")
        holder = lease()
        await first.begin()
        tasks = [asyncio.create_task(first.run())]
        await writer.send(QUOTA_DEMANDS, 0, encode(holder.demand(0.0)))
        await asyncio.sleep(0.1)
        later = asyncio.create_task(second.run())
        await asyncio.sleep(0.1)
        holder.need[0] = 4
        await writer.send(QUOTA_DEMANDS, 0, encode(holder.demand(0.2)))
        await asyncio.sleep(0.1)
        assert [grant.service for grant in await grants(broker)] == ["a", "b"]
        later.cancel()
        silent_s = 0.0
        while len(await grants(broker)) < 3:
            await writer.send(QUOTA_DEMANDS, 0, encode(holder.demand(0.3 + silent_s)))
            await asyncio.sleep(0.5)
            silent_s += 0.5
            assert silent_s < 2 * limits.QUOTA_TAKEOVER_MS / 1000
        newest = (await grants(broker))[-1]
        assert newest.service == "a" and silent_s * 1000 >= limits.QUOTA_TAKEOVER_MS
        assert newest.held[0] == 4 and newest.levels[0] <= 2 * 60_000, "one bucket, not a new one"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, later, return_exceptions=True)

    run_virtually(scenario())
