"""When usage events are sent: together, but never late for want of company."""

import asyncio

from engine_workers.usage_sender import UsageSender
from infra.memory import MemoryBroker
from infra.system import SystemClock
from schemas.topics import USAGE, topics
from tests.contract.store_suite import usage_row
from tests.worker_harness import until


async def seconds_until_sent(
    events: int, *, together: int, linger_ms: int, crowded: bool = False
) -> float:
    """Put some events into an idle sender; return the time until all are acknowledged."""
    broker = MemoryBroker(SystemClock())
    for topic in topics("pool"):
        broker.create_topic(topic.name, topic.partitions, {})
    acknowledged: list[str] = []
    sender = UsageSender(
        broker.writer("worker-0"),
        acknowledged.append,
        together=together,
        is_crowded=lambda: crowded,
        linger_ms=linger_ms,
    )
    sending = asyncio.create_task(sender.run())
    await asyncio.sleep(0.01)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for number in range(events):
        sender.put(usage_row(number).usage)
    await until(lambda: len(acknowledged) == events)
    sending.cancel()
    assert sum(len(log.read(0, 1 << 30)) for log in broker.topics[USAGE].partitions) == events
    return loop.time() - began_s


def test_a_lone_event_is_sent_after_a_while() -> None:
    """It waits for others for its time, and no longer."""
    assert asyncio.run(seconds_until_sent(1, together=2, linger_ms=100)) >= 0.1


def test_enough_events_are_sent_at_once() -> None:
    """Requests that wait for nothing but company do not hold their places for a minute."""
    assert asyncio.run(seconds_until_sent(2, together=2, linger_ms=60_000)) < 10


def test_no_event_waits_where_requests_wait_for_its_place() -> None:
    """A worker that holds all it may hold sends each usage event at once."""
    assert asyncio.run(seconds_until_sent(1, together=9, linger_ms=60_000, crowded=True)) < 10
