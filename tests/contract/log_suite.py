"""The contract of the four log ports, as checks that run on any adapter.

Each check takes a `LogHarness`, uses topics and groups of its own, and passes or raises. `CHECKS`
lists them all; `test_log_memory.py` and `test_log_kafka.py` run every one of them. Times
are bounded generously from above, because a real broker's rebalance takes its time.
"""

import asyncio

import pytest

from infra.errors import OffsetUnreadable, SendRefused
from infra.ports import Bounds, LogRecord
from schemas import limits
from tests.contract.log_group_suite import GROUP_CHECKS
from tests.contract.log_harness import (
    PATIENCE_S,
    POLL_MS,
    QUIET_MS,
    Check,
    LogHarness,
    fill,
    make_topic,
    read,
    values,
)

__all__ = ["CHECKS", "Check", "LogHarness"]


async def records_keep_their_order(log: LogHarness) -> None:
    """Records of one writer are read in enqueue order, at the offsets and times acknowledged."""
    places = await make_topic(log, 2)
    writer, reader = await log.writer(), await log.reader()
    acks = [await writer.enqueue(*places[index % 2], b"%d" % index) for index in range(200)]
    appended = [await ack for ack in acks]
    reader.assign(dict.fromkeys(places, 0))
    records = await read(reader, 200)
    for place in places:
        own = [record for record in records if record.partition == place.partition]
        expected = appended[place.partition :: 2]
        assert [record.value for record in own] == [
            b"%d" % index for index in range(place.partition, 200, 2)
        ]
        assert [record.offset for record in own] == list(range(100))
        assert [(record.offset, record.append_time_ms) for record in own] == expected
        assert expected == sorted(expected, key=lambda ack: ack.append_time_ms)


async def keys_and_headers_come_back(log: LogHarness) -> None:
    """Key, value and headers come back byte for byte, repeated names and emptiness included."""
    (place,) = await make_topic(log, 1)
    writer, reader = await log.writer(), await log.reader()
    headers = (("kind", b"\x00\xff"), ("kind", b""), ("é", b"x"))
    await writer.send(*place, b"\x00value", key=b"key", headers=headers)
    await writer.send(*place, b"")
    reader.assign({place: 0})
    full, bare = await read(reader, 2)
    assert (full.key, full.value, full.headers) == (b"key", b"\x00value", headers)
    assert (bare.key, bare.value, bare.headers) == (None, b"", ())
    assert (full.topic, full.partition) == place


async def bounds_follow_the_log(log: LogHarness) -> None:
    """Bounds are the first readable and the next offset: empty, filled and after retention."""
    empty, filled, cut = places = await make_topic(log, 3)
    await fill(log, [filled, cut], 3)
    await log.truncate(cut, 2)
    bounds = await (await log.reader()).bounds(places)
    assert bounds == {empty: Bounds(0, 0), filled: Bounds(0, 3), cut: Bounds(2, 3)}


async def positions_are_what_poll_has_not_returned(log: LogHarness) -> None:
    """A reader reads from the assigned offset on, and assigning again replaces all positions."""
    first, second = places = await make_topic(log, 2)
    await fill(log, places, 5)
    reader = await log.reader()
    reader.assign({first: 1})
    assert reader.position(first) == 1
    assert values(await read(reader, 2), first) == [b"1", b"2"]
    assert reader.position(first) == 3
    reader.assign({second: 3})
    records = await read(reader, 2)
    assert values(records, second) == [b"3", b"4"]
    assert not values(records, first)
    assert reader.position(second) == 5


async def poll_bounds_its_records(log: LogHarness) -> None:
    """Poll returns at most `max_records`, and leaves none of the others out."""
    places = await make_topic(log, 2)
    await fill(log, places, 5)
    reader = await log.reader()
    reader.assign(dict.fromkeys(places, 0))
    records: list[LogRecord] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(records) < 10:
            some = await reader.poll(timeout_ms=POLL_MS, max_records=3)
            assert len(some) <= 3
            records += some
    assert all(values(records, place) == [b"%d" % index for index in range(5)] for place in places)


async def poll_waits_its_time(log: LogHarness) -> None:
    """Poll returns empty after its time-out, not before."""
    (place,) = await make_topic(log, 1)
    reader = await log.reader()
    reader.assign({place: 0})
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    assert not await reader.poll(timeout_ms=QUIET_MS, max_records=1)
    # Timers may run early by the clock's granularity.
    assert 0.9 * QUIET_MS / 1000 <= loop.time() - started_s < PATIENCE_S


async def poll_returns_when_a_record_comes(log: LogHarness) -> None:
    """A waiting poll returns as soon as there is a record, long before its time-out."""
    (place,) = await make_topic(log, 1)
    reader, writer = await log.reader(), await log.writer()
    await writer.send(*place, b"before")
    reader.assign({place: 1})
    loop = asyncio.get_running_loop()
    poll = asyncio.create_task(reader.poll(timeout_ms=60_000, max_records=10))
    await asyncio.sleep(QUIET_MS / 1000)
    assert not poll.done()
    sent_s = loop.time()
    await writer.send(*place, b"now")
    assert values(await poll, place) == [b"now"]
    assert loop.time() - sent_s < 2.0


async def cancelling_a_poll_loses_nothing(log: LogHarness) -> None:
    """After a waiting poll was cancelled the next one returns what came meanwhile."""
    (place,) = await make_topic(log, 1)
    reader = await log.reader()
    reader.assign({place: 0})
    for index in range(3):
        poll = asyncio.create_task(reader.poll(timeout_ms=60_000, max_records=10))
        await asyncio.sleep(0.05)
        poll.cancel()
        with pytest.raises(asyncio.CancelledError):
            await poll
        assert reader.position(place) == index
        await (await log.writer()).send(*place, b"%d" % index)
        assert values(await read(reader, 1), place) == [b"%d" % index]


async def positions_outside_the_log_are_named(log: LogHarness) -> None:
    """A position below the start or beyond the end raises OffsetUnreadable with its place."""
    (place,) = await make_topic(log, 1)
    await fill(log, [place], 5)
    await log.truncate(place, 3)
    for offset in (2, 9):
        reader = await log.reader()
        reader.assign({place: offset})
        with pytest.raises(OffsetUnreadable) as error:
            await read(reader, 1)
        assert (error.value.topic, error.value.partition, error.value.offset) == (*place, offset)
        reader.assign({place: 3})
        assert values(await read(reader, 2), place) == [b"3", b"4"]


async def impossible_records_are_refused(log: LogHarness) -> None:
    """Too large a record and unknown places are refused, and the writer goes on."""
    (place,) = await make_topic(log, 1)
    writer, reader = await log.writer(), await log.reader()
    with pytest.raises(SendRefused):
        await writer.send(*place, bytes(limits.KAFKA_MESSAGE_BYTES_MAX + 1))
    with pytest.raises(SendRefused):
        await writer.send(log.unique("missing"), 0, b"lost")
    with pytest.raises(SendRefused):
        await writer.send(place.topic, 1, b"lost")
    assert (await writer.send(*place, b"fine")).offset == 0
    assert (await reader.bounds([place]))[place] == Bounds(0, 1)


async def the_largest_event_passes(log: LogHarness) -> None:
    """A record of the largest size that we let ourselves encode comes through whole."""
    (place,) = await make_topic(log, 1)
    event = bytes(range(256)) * (limits.EVENT_BYTES_MAX // 256)
    await (await log.writer()).send(*place, event, key=b"key", headers=[("kind", b"event")])
    reader = await log.reader()
    reader.assign({place: 0})
    (record,) = await read(reader, 1)
    assert record.value == event


async def closing_flushes(log: LogHarness) -> None:
    """Closing a writer waits for what is queued: every record is acknowledged and in the log."""
    (place,) = await make_topic(log, 1)
    writer = await log.writer()
    acks = [await writer.enqueue(*place, b"%d" % index) for index in range(20)]
    await writer.close()
    assert [ack.result().offset for ack in acks] == list(range(20))
    assert (await (await log.reader()).bounds([place]))[place] == Bounds(0, 20)


async def creating_twice_is_harmless(log: LogHarness) -> None:
    """Creating a topic again changes nothing; altering changes only what it names."""
    admin, topic = await log.admin(), log.unique("topic")
    await admin.create(topic, 3, {"retention.ms": "60000", "cleanup.policy": "delete"})
    await admin.create(topic, 3, {"retention.ms": "1000"})
    assert (await admin.topics())[topic] == 3
    assert await admin.settings(topic) == {"retention.ms": "60000", "cleanup.policy": "delete"}
    await admin.alter(topic, {"retention.ms": "90000", "max.message.bytes": "2000000"})
    assert await admin.settings(topic) == {
        "retention.ms": "90000",
        "cleanup.policy": "delete",
        "max.message.bytes": "2000000",
    }


async def an_unknown_group_has_no_offsets(log: LogHarness) -> None:
    """A group that never committed has no offsets."""
    assert await (await log.admin()).group_offsets(log.unique("group")) == {}


CHECKS: tuple[Check, ...] = (
    records_keep_their_order,
    keys_and_headers_come_back,
    bounds_follow_the_log,
    positions_are_what_poll_has_not_returned,
    poll_bounds_its_records,
    poll_waits_its_time,
    poll_returns_when_a_record_comes,
    cancelling_a_poll_loses_nothing,
    positions_outside_the_log_are_named,
    impossible_records_are_refused,
    the_largest_event_passes,
    closing_flushes,
    creating_twice_is_harmless,
    an_unknown_group_has_no_offsets,
    *GROUP_CHECKS,
)
