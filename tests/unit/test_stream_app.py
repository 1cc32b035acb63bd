"""The stream-app's pure parts: the fold, entries, expiry, confirmations, publisher and agent."""

import asyncio
from asyncio import Future

import pytest

from infra.memory import MemoryBroker
from infra.ports import TopicPartition
from infra.system import SystemClock
from schemas import limits
from schemas.codec import decode
from schemas.operations import DeadLetter
from schemas.topics import DEAD_LETTERS, STREAM_APP_ID, USAGE, USAGE_TOTALS
from schemas.usage import UsageTotals
from streams.stream_app import entries
from streams.stream_app.confirmations import Committable, Confirmations
from streams.stream_app.delivery import DeliveryWatch
from streams.stream_app.errors import DeliveryGap, DeliveryStalled
from streams.stream_app.expiry import SeenExpiry
from streams.stream_app.publisher import TotalsPublisher
from streams.stream_app.starts import delivery_ends, delivery_starts
from streams.stream_app.totals import OrgTotal, fold_usage
from tests.unit.test_stream_app_exactness import Platform, record_of, usage_of_request


def test_counts_a_first_record() -> None:
    """A record of an unknown org makes a total that is whole up to its offset."""
    folded = fold_usage(None, None, usage_of_request("a", "acme", 5), 2, 7)
    assert folded.total == OrgTotal(
        requests=1,
        input_tokens=5,
        cached_tokens=1,
        output_tokens=10,
        cost_nano=0,
        offset=7,
        month=197001,
        month_input_tokens=5,
        month_output_tokens=10,
    )
    assert folded.publish is not None
    assert (folded.publish.partition, folded.publish.next_offset) == (2, 8)


def test_skips_what_the_total_holds_and_keeps_its_first_place() -> None:
    """A record at or below the total's offset changes no sum, but its id is remembered again."""
    usage = usage_of_request("a", "acme", 5)
    total = fold_usage(None, None, usage, 0, 7).total
    folded = fold_usage(total, None, usage, 0, 7)
    assert (folded.total, folded.seen_offset, folded.publish) == (total, 7, None)


def test_skips_an_id_seen_lower() -> None:
    """A second copy of a request changes nothing and does not move the id's first place."""
    usage = usage_of_request("a", "acme", 5)
    total = fold_usage(None, None, usage, 0, 7).total
    folded = fold_usage(total, 7, usage, 0, 9)
    assert (folded.total, folded.seen_offset, folded.publish) == (total, 7, None)


def test_counts_a_record_whose_total_was_lost() -> None:
    """An id seen at this very offset is this record: its total did not survive, so it counts."""
    folded = fold_usage(None, 7, usage_of_request("a", "acme", 5), 0, 7)
    assert folded.total is not None and folded.total.requests == 1


def test_keys_keep_partitions_apart() -> None:
    """An org on two partitions has two entries, also where its name holds the separator."""
    assert entries.entry_key(1, "a/b") != entries.entry_key(2, "a/b")
    assert entries.key_parts(entries.entry_key(1, "a/b")) == (1, "a/b")


def test_higher_totals_and_lower_seen_win() -> None:
    """Whatever order a changelog is read in, the higher total and the lower first place stay."""
    low, high = (entries.pack_total(_total(offset)) for offset in (3, 4))
    assert entries.total_wins(low, high) and not entries.total_wins(high, low)
    early, late = (entries.pack_seen(entries.Seen(offset, 0)) for offset in (3, 4))
    assert entries.seen_wins(late, early) and not entries.seen_wins(early, late)


def test_expires_by_committed_append_time_and_bounded() -> None:
    """Entries go once a committed record is a retention younger, a few per record."""
    expiry = SeenExpiry()
    count = limits.SEEN_SWEPT_PER_RECORD_MAX + 2
    times = {b"%d" % n: 1_000 + n for n in range(count)}
    expiry.rebuild([(0, times[key], key) for key in reversed(times)])
    assert expiry.due(0, 1_000 + limits.SEEN_RETENTION_MS, times.get) == ()
    assert expiry.due(1, 10**15, times.get) == ()
    assert expiry.due(0, 10**15, times.get) == tuple(
        b"%d" % n for n in range(limits.SEEN_SWEPT_PER_RECORD_MAX)
    )
    assert len(expiry.due(0, 10**15, times.get)) == 2


def test_an_entry_that_is_gone_holds_up_none_behind_it() -> None:
    """A key that was queued twice is taken at its entry's time, and passed over after that."""
    expiry, late_ms = SeenExpiry(), 1_000 + limits.SEEN_RETENTION_MS
    for key in (b"a", b"a", b"b"):
        expiry.add(0, key)
    assert expiry.due(0, late_ms + 2, {b"a": 1_001, b"b": 1_002}.get) == (b"a", b"a")
    expiry.add(0, b"c")
    assert expiry.due(0, late_ms + 2, {b"c": 1_001}.get) == (b"b", b"c")


def test_confirms_in_order_only() -> None:
    """An offset is committable once its writes and those of all records before it have landed."""

    async def scenario() -> None:
        confirmations = Confirmations()
        first: Future[None] = asyncio.get_running_loop().create_future()
        confirmations.add(0, 5, 50, [first])
        confirmations.add(0, 6, 60, [])
        assert confirmations.advance() == {}
        first.set_result(None)
        allowed = confirmations.advance()
        assert allowed == {0: Committable(7, 60)}
        confirmations.committed(allowed)
        assert confirmations.advance() == {} and confirmations.committed_at_ms(0) == 60

    asyncio.run(scenario())


def test_delivery_again_never_moves_a_commit_back() -> None:
    """Records delivered again wait behind their first delivery and lower nothing."""

    async def scenario() -> None:
        confirmations = Confirmations()
        write: Future[None] = asyncio.get_running_loop().create_future()
        confirmations.add(0, 5, 50, [write])
        confirmations.add(0, 4, 40, [])
        assert confirmations.advance() == {}
        write.set_result(None)
        assert confirmations.advance() == {0: Committable(6, 50)}

    asyncio.run(scenario())


def test_a_failed_write_stops_all_commits() -> None:
    """Once a changelog write has failed, asking what to commit raises, again and again."""

    async def scenario() -> None:
        confirmations = Confirmations()
        write: Future[None] = asyncio.get_running_loop().create_future()
        write.set_exception(OSError("gone"))
        confirmations.add(0, 5, 50, [write])
        for _ in range(2):
            with pytest.raises(OSError, match="gone"):
                confirmations.advance()

    asyncio.run(scenario())


def test_a_gap_in_delivery_is_refused() -> None:
    """A record whose predecessor never came is refused, the first one too; where another owner
    came to is no gap."""
    confirmations = Confirmations()
    confirmations.resume({0: 9})
    with pytest.raises(DeliveryGap, match="offset 9 expected, 10 delivered"):
        confirmations.expect(0, 10)
    confirmations.expect(0, 9)
    confirmations.add(0, 9, 90, [])
    confirmations.expect(0, 10)
    confirmations.expect(0, 3)
    with pytest.raises(DeliveryGap, match="offset 10 expected, 11 delivered"):
        confirmations.expect(0, 11)
    confirmations.resume({0: 42})
    confirmations.expect(0, 42)


def test_records_that_do_not_come_are_noticed() -> None:
    """A partition with more records may stand still for some checks, but not for ever; progress,
    an end that is reached or a reset start the count anew."""
    watch = DeliveryWatch()
    for expected, ends in (({0: 5, 1: 7}, {0: 5, 1: 9}), ({0: 5, 1: 8}, {0: 6, 1: 9})):
        for _ in range(limits.USAGE_DELIVERY_CHECKS_MAX):
            watch.check(expected, ends)
    watch.reset()
    for _ in range(limits.USAGE_DELIVERY_CHECKS_MAX):
        watch.check({0: 5, 1: 9}, {0: 6, 1: 9})
    with pytest.raises(DeliveryStalled, match="partition 0: nothing from 5 to 6 was delivered"):
        watch.check({0: 5, 1: 9}, {0: 6, 1: 9})


def test_delivery_starts_at_the_commit_or_the_oldest_record() -> None:
    """Where nothing is committed, or retention has passed the commit, the oldest record is next."""

    async def scenario() -> None:
        broker = _broker()
        broker.create_topic(USAGE, limits.USAGE_PARTITIONS, {})
        writer, group = broker.writer("worker"), broker.group_reader(STREAM_APP_ID)
        parts = [TopicPartition(USAGE, number) for number in range(limits.USAGE_PARTITIONS)]
        for part in parts:
            for _ in range(5):
                await writer.send(USAGE, part.partition, b"usage")
        await group.join([USAGE])
        await group.poll(timeout_ms=10, max_records=1)
        await group.commit({parts[0]: 3, parts[1]: 3})
        broker.truncate(parts[1], 4)
        broker.truncate(parts[2], 2)
        starts = await delivery_starts(broker.admin(), broker.reader())
        assert starts == {0: 3, 1: 4, 2: 2, 3: 0}
        assert await delivery_ends(broker.reader()) == dict.fromkeys(range(4), 5)

    asyncio.run(scenario())


def test_publishes_the_newest_total_once_per_turn() -> None:
    """Several changes of an org become one record, on the partition of their source."""

    async def scenario() -> None:
        broker = _broker()
        publisher = TotalsPublisher(broker.writer("stream-app"))
        for offset in (4, 6, 5):
            folded = fold_usage(None, None, usage_of_request("a", "acme", 5), 3, offset)
            assert folded.publish is not None
            publisher.offer(folded.publish)
        await publisher.run_once()
        await publisher.run_once()
        reader = broker.reader()
        reader.assign({TopicPartition(USAGE_TOTALS, 3): 0})
        [record] = await reader.poll(timeout_ms=10, max_records=10)
        assert record.key == b"acme"
        assert decode(record.value, UsageTotals).next_offset == 7

    asyncio.run(scenario())


def test_poison_is_buried_and_passed() -> None:
    """Bytes that are no usage event end as a dead letter, and the next record counts."""

    async def scenario() -> None:
        broker = _broker()
        platform = Platform(broker.writer("stream-app"))
        await platform.agent.handle(record_of(0, 0, b"junk"))
        await platform.agent.handle(record_of(0, 1, usage_of_request("a", "acme", 5)))
        assert platform.confirmations.unconfirmed == 2
        assert platform.sums() == {(0, "acme"): (1, 5)}
        reader = broker.reader()
        reader.assign({TopicPartition(DEAD_LETTERS, 0): 0})
        [record] = await reader.poll(timeout_ms=10, max_records=10)
        letter = decode(record.value, DeadLetter)
        assert (letter.topic, letter.offset, letter.value) == ("usage.v1", 0, b"junk")

    asyncio.run(scenario())


def test_sweeps_old_entries_as_records_come() -> None:
    """A record that comes a retention after a committed one takes old `seen` entries away."""

    async def scenario() -> None:
        platform = Platform(_broker().writer("stream-app"))
        later_ms = limits.SEEN_RETENTION_MS + 10_000
        for offset, name, at_ms in ((0, "a", 0), (1, "b", later_ms)):
            usage = usage_of_request(name, "acme", 5)
            await platform.agent.handle(record_of(0, offset, usage, at_ms))
        assert set(platform.seen) == {b"0/a", b"0/b"}
        platform.confirmations.committed({0: Committable(2, later_ms)})
        usage = usage_of_request("c", "acme", 5)
        await platform.agent.handle(record_of(0, 2, usage, later_ms))
        assert set(platform.seen) == {b"0/b", b"0/c"}

    asyncio.run(scenario())


def _total(offset: int) -> OrgTotal:
    return OrgTotal(
        requests=1, input_tokens=0, cached_tokens=0, output_tokens=0, cost_nano=0, offset=offset
    )


def _broker() -> MemoryBroker:
    broker = MemoryBroker(SystemClock())
    broker.create_topic(USAGE_TOTALS, limits.USAGE_PARTITIONS, {})
    broker.create_topic(DEAD_LETTERS, 1, {})
    return broker
