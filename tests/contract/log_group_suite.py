"""The contract of `GroupReader`, as checks; part of `tests.contract.log_suite`."""

import asyncio
from collections.abc import Collection, Sequence

import pytest

from infra.errors import CommitRefused
from infra.ports import GroupReader, LogRecord, TopicPartition
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

HANDOVER_S = 6.0
"""Less than a session takes to run out, so that leaving cannot be confused with it."""


async def settle(
    members: Sequence[GroupReader], places: Collection[TopicPartition]
) -> list[LogRecord]:
    """Poll until these members hold each partition once and each holds some; return what came."""
    records: list[LogRecord] = []
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for member in members:
                records += await member.poll(timeout_ms=POLL_MS, max_records=100)
            held = [place for member in members for place in member.assignment().partitions]
            everyone = all(member.assignment().partitions for member in members)
            if everyone and sorted(held) == sorted(places):
                return records


async def join(log: LogHarness, group: str, places: Collection[TopicPartition]) -> GroupReader:
    """Return a member that has joined alone and holds all partitions, having read nothing."""
    member = await log.group_reader(group, "first")
    await member.join({place.topic for place in places})
    async with asyncio.timeout(PATIENCE_S):
        while member.assignment().partitions != frozenset(places):
            assert not await member.poll(timeout_ms=0, max_records=1), "fill after joining"
            await asyncio.sleep(POLL_MS / 1000)
    return member


async def a_first_member_gets_everything(log: LogHarness) -> None:
    """A member has nothing before it joined, then every partition from the start of the log."""
    places = await make_topic(log, 3)
    await fill(log, places, 2)
    member = await log.group_reader(log.unique("group"), "first")
    assert member.assignment() == (0, frozenset())
    assert member.member_id() is None
    await member.join([places[0].topic])
    records = await read(member, 6)
    assert all(values(records, place) == [b"0", b"1"] for place in places)
    assert member.assignment().epoch >= 1
    assert member.assignment().partitions == frozenset(places)
    assert member.member_id()


async def a_successor_resumes_from_the_commit(log: LogHarness) -> None:
    """Commits are kept with the group: admins see them, and a successor starts there."""
    first, second = places = await make_topic(log, 2)
    group = log.unique("group")
    member = await join(log, group, places)
    await fill(log, places, 3)
    await read(member, 6)
    await member.commit({first: 2})
    assert await member.committed(places) == {first: 2}
    assert await (await log.admin()).group_offsets(group) == {first: 2}
    await member.leave()
    successor = await log.group_reader(group, "successor")
    await successor.join([first.topic])
    records = await read(successor, 4)
    assert values(records, first) == [b"2"]
    assert values(records, second) == [b"0", b"1", b"2"]
    assert await successor.committed(places) == {first: 2}


async def seeking_reads_again(log: LogHarness) -> None:
    """Seek makes an offset the next one read, and means nothing for a partition not assigned."""
    (place,) = await make_topic(log, 1)
    member = await join(log, log.unique("group"), [place])
    await fill(log, [place], 3)
    await read(member, 3)
    member.seek(TopicPartition(place.topic, 7), 0)
    member.seek(place, 1)
    assert values(await read(member, 2), place) == [b"1", b"2"]


async def pausing_holds_a_partition_back(log: LogHarness) -> None:
    """A paused partition yields nothing, the others go on; resuming yields what was held back."""
    held, running = places = await make_topic(log, 2)
    member = await join(log, log.unique("group"), places)
    member.pause([held])
    await fill(log, places, 2)
    assert values(await read(member, 2), running) == [b"0", b"1"]
    assert not await member.poll(timeout_ms=QUIET_MS, max_records=10)
    member.resume([held])
    assert values(await read(member, 2), held) == [b"0", b"1"]


async def a_second_member_shares(log: LogHarness) -> None:
    """A second member gets its share, each partition is held once, and what stays does not move."""
    places = await make_topic(log, 4)
    group = log.unique("group")
    first = await join(log, group, places)
    epoch = first.assignment().epoch
    second = await log.group_reader(group, "second")
    await second.join([places[0].topic])
    await settle([first, second], places)
    assert first.assignment().epoch > epoch
    assert [len(member.assignment().partitions) for member in (first, second)] == [2, 2]
    assert first.member_id() != second.member_id()


async def busy_partitions_stay(log: LogHarness) -> None:
    """Those that a second member takes from the first are the ones with the least work."""
    places = await make_topic(log, 4)
    group = log.unique("group")
    first = await log.group_reader(group, "first")
    work = {places[1]: 5, places[2]: 1, places[3]: 7}
    await first.join([places[0].topic], work=lambda: work)
    async with asyncio.timeout(PATIENCE_S):
        while first.assignment().partitions != frozenset(places):
            await first.poll(timeout_ms=POLL_MS, max_records=1)
    second = await log.group_reader(group, "second")
    await second.join([places[0].topic])
    await settle([first, second], places)
    assert second.assignment().partitions == {places[0], places[2]}
    work.update({places[1]: 0, places[3]: 0})
    third = await log.group_reader(group, "third")
    await third.join([places[0].topic])
    await settle([first, second, third], places)
    assert len(third.assignment().partitions) == 1
    kept = first.assignment().partitions | second.assignment().partitions
    assert kept | third.assignment().partitions == frozenset(places)
    assert first.assignment().partitions <= {places[1], places[3]}
    assert second.assignment().partitions <= {places[0], places[2]}


async def a_rebalance_falls_back_to_the_commit(log: LogHarness) -> None:
    """After a rebalance everything past the commit is read again, paused or not."""
    places = await make_topic(log, 2)
    group = log.unique("group")
    first = await join(log, group, places)
    await fill(log, places, 3)
    await read(first, 6)
    await first.commit(dict.fromkeys(places, 1))
    first.pause(places)
    second = await log.group_reader(group, "second")
    await second.join([places[0].topic])
    records = await settle([first, second], places)
    async with asyncio.timeout(PATIENCE_S):
        while not all(values(records, place)[-2:] == [b"1", b"2"] for place in places):
            for member in (first, second):
                records += await member.poll(timeout_ms=POLL_MS, max_records=10)
    assert b"0" not in {record.value for record in records}


async def leaving_hands_over(log: LogHarness) -> None:
    """A member that leaves hands its partitions to the others at once, from its last commit on."""
    places = await make_topic(log, 2)
    group = log.unique("group")
    first = await join(log, group, places)
    second = await log.group_reader(group, "second")
    await second.join([places[0].topic])
    await settle([first, second], places)
    (handed,) = second.assignment().partitions
    await fill(log, [handed], 2)
    await read(second, 2)
    await second.commit({handed: 1})
    await second.leave()
    left_s = asyncio.get_running_loop().time()
    records = await settle([first], places)
    assert asyncio.get_running_loop().time() - left_s < HANDOVER_S
    records += await read(first, 1 - len(records))
    assert values(records, handed) == [b"1"]


async def a_stale_commit_is_refused(log: LogHarness) -> None:
    """A commit of a partition that has moved on is refused; its new holder's is taken."""
    places = await make_topic(log, 2)
    group = log.unique("group")
    first = await join(log, group, places)
    await fill(log, places, 3)
    await first.commit(dict.fromkeys(places, 1))
    second = await log.group_reader(group, "second")
    await second.join([places[0].topic])
    async with asyncio.timeout(PATIENCE_S):
        while not second.assignment().partitions:
            await second.poll(timeout_ms=POLL_MS, max_records=10)
    (moved,) = second.assignment().partitions
    with pytest.raises(CommitRefused):
        await first.commit({moved: 3})
    assert await second.committed(places) == dict.fromkeys(places, 1)
    await second.commit({moved: 2})
    assert (await second.committed(places))[moved] == 2
    await settle([first, second], places)
    with pytest.raises(CommitRefused):
        await first.commit({moved: 3})
    assert (await second.committed(places))[moved] == 2


GROUP_CHECKS: tuple[Check, ...] = (
    a_first_member_gets_everything,
    a_successor_resumes_from_the_commit,
    seeking_reads_again,
    pausing_holds_a_partition_back,
    a_second_member_shares,
    busy_partitions_stay,
    a_rebalance_falls_back_to_the_commit,
    leaving_hands_over,
    a_stale_commit_is_refused,
)
