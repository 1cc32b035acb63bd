"""Members of the memory log's groups that stall, die or meet rebalances, in virtual time."""

import asyncio
from collections.abc import Collection, Mapping

import pytest

from infra.assignor import Claim, assign_idlest
from infra.errors import CommitRefused, LogUnavailable
from infra.memory import CommitFate, MemoryBroker, PollFate
from infra.ports import TopicPartition
from tests.contract.memory_script import HERE, THERE, Script, broker_with, now_s
from tests.contract.virtual_time import run_virtually


def test_an_idle_reader_does_not_wake() -> None:
    """A waiting poll runs nothing until a record comes."""

    async def main() -> None:
        broker = broker_with()
        reader, member = broker.reader("r"), broker.group_reader("g", "m")
        reader.assign({HERE: 0})
        await member.join(["t"])
        await member.poll(timeout_ms=0, max_records=1)
        polls = [
            asyncio.create_task(each.poll(timeout_ms=3_600_000, max_records=9))
            for each in (reader, member)
        ]
        await asyncio.sleep(60)
        loop = asyncio.get_running_loop()
        timers = [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]  # asyncio shows its timers nowhere else
        assert [timer.when() for timer in timers] == [3_600, 3_600], "the polls' time-outs only"
        await broker.writer("w").send(*HERE, b"x")
        for poll in polls:
            assert [record.value for record in await poll] == [b"x"]
        assert now_s() == pytest.approx(60)

    run_virtually(main())


def test_a_poll_ends_in_its_own_time_whatever_earlier_ones_waited_for() -> None:
    """An alarm that a woken poll leaves behind neither cuts short nor delays the next poll."""

    async def main() -> None:
        broker = broker_with()
        reader, writer = broker.reader("r"), broker.writer("w")
        reader.assign({HERE: 0})
        for waited_ms, next_ms in ((10_000, 30_000), (30_000, 10_000)):
            poll = asyncio.create_task(reader.poll(timeout_ms=waited_ms, max_records=9))
            await asyncio.sleep(1)
            await writer.send(*HERE, b"x")
            assert [record.value for record in await poll] == [b"x"]
            began_s = now_s()
            assert await reader.poll(timeout_ms=next_ms, max_records=9) == []
            assert now_s() - began_s == pytest.approx(next_ms / 1000)

    run_virtually(main())


def test_a_record_that_lands_while_its_partition_is_paused_is_taken_on_resuming() -> None:
    """A pause hides news of a partition and loses none."""

    async def main() -> None:
        broker = broker_with()
        member, writer = broker.group_reader("g", "m"), broker.writer("w")
        await member.join(["t"])
        await member.poll(timeout_ms=0, max_records=9)
        member.pause([HERE])
        await writer.send(*HERE, b"x")
        assert await member.poll(timeout_ms=1_000, max_records=9) == []
        member.resume([HERE])
        assert [record.value for record in await member.poll(timeout_ms=0, max_records=9)] == [b"x"]

    run_virtually(main())


def test_dying_ends_a_waiting_poll() -> None:
    """A poll that waits when its reader dies raises at once."""

    async def main() -> None:
        broker = broker_with()
        reader, member = broker.reader("r"), broker.group_reader("g", "m")
        reader.assign({HERE: 0})
        await member.join(["t"])
        for dying in (reader, member):
            poll = asyncio.create_task(dying.poll(timeout_ms=60_000, max_records=1))
            await asyncio.sleep(1)
            dying.kill()
            with pytest.raises(LogUnavailable):
                await poll
        assert now_s() == pytest.approx(2.0)

    run_virtually(main())


async def fill_both(broker: MemoryBroker) -> None:
    """Put three records into each partition."""
    writer = broker.writer("w")
    for place in (HERE, THERE):
        for index in range(3):
            await writer.send(*place, b"%d" % index)


def test_a_silent_member_is_ejected_and_comes_back() -> None:
    """A member that does not poll is ejected, its commit refused; polling, it is a new member."""

    async def main() -> None:
        broker = broker_with()
        first = broker.group_reader("g", "first", session_timeout_ms=5_000)
        second = broker.group_reader("g", "second", session_timeout_ms=5_000)
        for member in (first, second):
            await member.join(["t"])
            await member.poll(timeout_ms=0, max_records=1)
        old = first.member_id()
        await second.poll(timeout_ms=6_000, max_records=1)
        assert second.assignment().partitions == {HERE, THERE}
        assert len(first.assignment().partitions) == 2, "a zombie goes by what it noted last"
        with pytest.raises(CommitRefused):
            await first.commit({HERE: 0})
        await first.poll(timeout_ms=0, max_records=1)
        assert first.member_id() != old
        await second.poll(timeout_ms=0, max_records=1)
        assert len(first.assignment().partitions) == len(second.assignment().partitions) == 1
        await first.commit(dict.fromkeys(first.assignment().partitions, 0))

    run_virtually(main())


def test_a_waiting_poll_keeps_the_session() -> None:
    """A member that waits in one long poll stays a member."""

    async def main() -> None:
        broker = broker_with()
        member = broker.group_reader("g", "m", session_timeout_ms=1_000)
        await member.join(["t"])
        name = member.member_id()
        await member.poll(timeout_ms=30_000, max_records=1)
        await asyncio.sleep(0.9)
        await member.commit({HERE: 0})
        assert member.member_id() == name

    run_virtually(main())


def test_polling_now_and_then_keeps_the_session() -> None:
    """A member whose pauses between polls are shorter than its session stays a member."""

    async def main() -> None:
        member = broker_with().group_reader("g", "m", session_timeout_ms=1_000)
        await member.join(["t"])
        name = member.member_id()
        for _ in range(9):
            await asyncio.sleep(0.7)
            await member.poll(timeout_ms=0, max_records=1)
        assert member.member_id() == name

    run_virtually(main())


def test_a_waiting_member_notices_at_once() -> None:
    """A waiting poll goes on with what another's leave, or its own ejection, made of the group."""

    async def main() -> None:
        broker = broker_with()
        first, second = (broker.group_reader("g", name) for name in ("first", "second"))
        for member in (first, second, first):
            if member.member_id() is None:
                await member.join(["t"])
            await member.poll(timeout_ms=0, max_records=1)
        (handed,) = second.assignment().partitions
        poll = asyncio.create_task(first.poll(timeout_ms=3_600_000, max_records=1))
        await asyncio.sleep(1)
        await second.leave()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert first.assignment().partitions == {HERE, THERE}
        old = first.member_id()
        assert old is not None
        broker.eject("g", old)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert first.member_id() != old
        await broker.writer("w").send(*handed, b"x")
        assert [record.value for record in await poll] == [b"x"]
        assert now_s() == pytest.approx(1.0)

    run_virtually(main())


def test_a_new_topic_reaches_its_subscribers() -> None:
    """A member that subscribed to a topic not made yet gets it when it is made."""

    async def main() -> None:
        broker = broker_with()
        member = broker.group_reader("g", "m")
        await member.join(["t", "later"])
        await member.poll(timeout_ms=0, max_records=1)
        broker.create_topic("later", 1, {})
        await member.poll(timeout_ms=0, max_records=1)
        assert member.assignment().partitions == {HERE, THERE, TopicPartition("later", 0)}

    run_virtually(main())


def test_assignment_is_sticky_and_balanced() -> None:
    """A newcomer takes from the fullest, a leaver's share is spread, and nothing else moves."""
    places = [TopicPartition("t", index) for index in range(7)]

    def claims(members: str, held: Mapping[str, Collection[TopicPartition]]) -> dict[str, Claim]:
        return {
            member: Claim(topics=["t"], held=dict.fromkeys(held.get(member, ()), 0))
            for member in members
        }

    three = assign_idlest(places, claims("abc", {"a": places[:4], "b": places[4:]}))
    assert sorted(len(held) for held in three.values()) == [2, 2, 3]
    assert three["a"] < set(places[:4])
    assert three["b"] <= set(places[4:])
    left = assign_idlest(places, claims("bc", three))
    assert sorted(len(held) for held in left.values()) == [3, 4]
    assert all(three[member] <= left[member] for member in "bc")
    assert left["b"] | left["c"] == set(places)


def test_death_takes_the_session_time_out_or_a_notice() -> None:
    """A killed member holds its partitions until its session ends, or somebody gives notice."""

    async def main(notice: bool) -> None:
        broker = broker_with()
        dying, heir = broker.group_reader("g", "dying"), broker.group_reader("g", "heir")
        for member in (dying, heir, dying, heir):
            await member.join(["t"])
            await member.poll(timeout_ms=0, max_records=1)
        await dying.poll(timeout_ms=0, max_records=1)
        name = dying.member_id()
        assert name is not None
        dying.kill()
        with pytest.raises(LogUnavailable):
            await dying.poll(timeout_ms=0, max_records=1)
        await heir.poll(timeout_ms=1_000, max_records=1)
        assert len(heir.assignment().partitions) == 1
        assert not notice or broker.eject("g", name)
        await heir.poll(timeout_ms=1_000 if notice else 10_000, max_records=1)
        assert heir.assignment().partitions == {HERE, THERE}

    run_virtually(main(notice=False))
    run_virtually(main(notice=True))


def test_forced_rebalances() -> None:
    """Rebalances before a poll reset positions and pauses, and are seen as one by the member."""

    async def main() -> None:
        polls = (PollFate(), PollFate(), PollFate(rebalances=3))
        broker = broker_with(Script(polls=polls))
        member = broker.group_reader("g", "m")
        await member.join(["t"])
        await fill_both(broker)
        assert len(await member.poll(timeout_ms=0, max_records=10)) == 6
        await member.commit({HERE: 2, THERE: 3})
        member.pause([HERE])
        assert not await member.poll(timeout_ms=0, max_records=10)
        epoch = member.assignment().epoch
        (again,) = await member.poll(timeout_ms=0, max_records=10)
        assert (again.partition, again.value) == (0, b"2")
        assert member.assignment().epoch == epoch + 1
        assert broker.fired == {"poll.rebalance": 3}

    run_virtually(main())


def test_scattering_moves_what_sticks_otherwise() -> None:
    """A plain rebalance leaves partitions where they are; a scattering one moves them in turn."""

    async def main() -> None:
        broker = broker_with()
        members = [broker.group_reader("g", name) for name in ("a", "b")]
        for member in members:
            await member.join(["t"])

        async def held() -> list[frozenset[TopicPartition]]:
            for member in members:
                await member.poll(timeout_ms=0, max_records=1)
            return [member.assignment().partitions for member in members]

        before = await held()
        broker.rebalance("g")
        assert await held() == before
        scattered = []
        for _ in range(2):
            broker.rebalance("g", scatter=True)
            scattered.append(await held())
        assert before[::-1] in scattered

    run_virtually(main())


def test_a_stalled_poll_costs_the_session() -> None:
    """A member that stalls longer than its session is ejected meanwhile, and joins again."""

    async def main() -> None:
        broker = broker_with(Script(polls=(PollFate(), PollFate(stall_ms=11_000))))
        member = broker.group_reader("g", "m")
        await member.join(["t"])
        await member.poll(timeout_ms=0, max_records=1)
        old = member.member_id()
        await member.poll(timeout_ms=0, max_records=1)
        assert now_s() == pytest.approx(11.0)
        assert member.member_id() != old
        assert broker.fired == {"poll.stall": 1}

    run_virtually(main())


def test_commit_faults() -> None:
    """A commit is refused after a rebalance, or of unknown outcome: not taken, or taken."""

    async def main() -> None:
        kinds = (CommitFate(kind="lose"), CommitFate(kind="ack_lost"), CommitFate(kind="stale"))
        broker = broker_with(Script(commits=(*kinds, CommitFate(stall_ms=100))))
        member = broker.group_reader("g", "m")
        await member.join(["t"])
        await member.poll(timeout_ms=0, max_records=1)
        await fill_both(broker)
        outcomes = []
        for offset in (1, 2, 3):
            with pytest.raises((LogUnavailable, CommitRefused)):
                await member.commit({HERE: offset})
            outcomes.append(dict(await member.committed([HERE])))
        assert outcomes == [{}, {HERE: 2}, {HERE: 2}]
        await member.poll(timeout_ms=0, max_records=1)
        await member.commit({HERE: 3})
        assert now_s() == pytest.approx(0.1)
        assert set(broker.fired) == {
            "commit.lose",
            "commit.ack_lost",
            "commit.stale",
            "commit.stall",
        }

    run_virtually(main())


def test_a_commit_keeps_the_generation_of_when_it_was_sent() -> None:
    """One that stalls over a rebalance is refused, although its member has noted the newer one."""

    async def main() -> None:
        broker = broker_with(Script(commits=(CommitFate(stall_ms=1_000),)))
        member = broker.group_reader("g", "m")
        await member.join(["t"])
        await member.poll(timeout_ms=0, max_records=1)
        commit = asyncio.create_task(member.commit({HERE: 0}))
        await asyncio.sleep(0.5)
        broker.rebalance("g")
        await member.poll(timeout_ms=0, max_records=1)
        with pytest.raises(CommitRefused):
            await commit
        assert await member.committed([HERE]) == {}

    run_virtually(main())
