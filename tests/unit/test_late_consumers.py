"""Consumers that come while their partition's tail stands behind what has been read for them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.closing import Closer
from gateway.live_reply import LiveReply
from gateway.reader import ReplyReader
from gateway.reply_tails import ReplyTails
from gateway.rereading import RereadingPool
from infra.memory import MemoryBroker
from infra.ports import LogReader, LogWriter
from schemas import limits
from schemas.codec import encode
from schemas.replies import Delta, ReplyRecord, Start, entry_of
from schemas.topics import REPLIES, topics
from tests.builders import REQUEST_ID, request, start
from tests.contract.virtual_time import LoopClock, run_virtually
from tests.gateway_platform import read_to_end
from tests.unit.test_fold_choices import END, part, whole

OTHER_ID = "00000000-0000-4000-8000-000000000002"
FACTS = (
    start(choices=2),
    part(0, 0, 5),
    part(1, 0, 6),
    part(0, 1, 8, stop=END),
    part(1, 1, 7, stop=END, terminal=whole((END, END), (5, 8), (6, 7))),
)
"""A reply whose choices run side by side: only the log keeps their order."""


async def append(writer: LogWriter, *facts: Start | Delta) -> None:
    """Append each fact as a record."""
    for fact in facts:
        await writer.send(REPLIES, 0, encode(ReplyRecord(entries=(entry_of(fact),))))


@asynccontextmanager
async def consumer(*facts: Start | Delta) -> AsyncIterator[LiveReply]:
    """Find a reply while its tail stands at the log's start, a poll of others' records below it."""
    broker, clock = MemoryBroker(LoopClock()), LoopClock()
    for topic in topics("pool"):
        broker.create_topic(topic.name, topic.partitions, {})
    tail = ReplyReader(reader=broker.reader("tail"), partition=0)
    await tail.start()
    writer = broker.writer("worker")
    await append(writer, *[start(request_id=OTHER_ID)] * limits.POLL_RECORDS_MAX, *facts)

    async def open_reader() -> LogReader:
        return broker.reader("reread")

    pool = RereadingPool(open_reader)
    tails = ReplyTails(own=tail, open_reader=open_reader, rereadings=pool, clock=clock)
    asked = request(choices=2)
    followed = await tails.find(REQUEST_ID, asked.locator, lambda _: asked)
    reply = LiveReply(
        followed=followed,
        mailbox=followed.subscribe(),
        reader=tail,
        closer=Closer(writer=broker.writer("closes"), clock=clock, reader=tails, by="gateway-0/1"),
        rereadings=pool,
        clock=clock,
        on_release=lambda _: None,
    )
    running = asyncio.create_task(_later(tail, writer, facts))
    try:
        yield reply
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await reply.release()
        await tails.stop()


async def _later(tail: ReplyReader, writer: LogWriter, said: tuple[Start | Delta, ...]) -> None:
    """Say the rest; then let the tail run, which stood still until everything was read."""
    await asyncio.sleep(1)
    await append(writer, *FACTS[len(said) :])
    await tail.run()


@pytest.mark.parametrize("said", [1, 3, 4, 5])
def test_a_late_consumer_gets_everything_where_the_tail_stands_behind(said: int) -> None:
    """Neither the end nor a token is left to a tail that will not tell of it any more."""

    async def scenario() -> None:
        async with consumer(*FACTS[:said]) as reply:
            assert sorted(await read_to_end(reply)) == [5, 6, 7, 8]

    run_virtually(scenario())
