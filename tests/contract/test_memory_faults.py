"""What the memory log's writer does when sends go wrong, in virtual time."""

import asyncio
import gc

import pytest

from infra.errors import LogError, SendUnknown
from infra.memory import MemoryBroker, SendFate
from infra.ports import LogRecord
from tests.contract.memory_script import (
    BOUND_S,
    HERE,
    THERE,
    Script,
    broker_with,
    landed,
    now_s,
)
from tests.contract.virtual_time import run_virtually


@pytest.mark.parametrize(
    ("fate", "at_the_bound", "at_last"),
    [
        (SendFate(kind="lose"), [], []),
        (SendFate(kind="ack_lost"), [b"x"], [b"x"]),
        (SendFate(kind="late", late_ms=5_000), [], [b"x"]),
        (SendFate(ack_ms=20_000), [b"x"], [b"x"]),
        (SendFate(land_ms=15_000), [], [b"x"]),
    ],
)
def test_unknown_sends(fate: SendFate, at_the_bound: list[bytes], at_last: list[bytes]) -> None:
    """A send of unknown outcome raises exactly at its bound, and lands as its fate says."""

    async def main() -> None:
        broker = broker_with(Script(fate))
        with pytest.raises(SendUnknown):
            await broker.writer("w").send(*HERE, b"x")
        assert now_s() == pytest.approx(BOUND_S)
        assert landed(broker) == at_the_bound
        await asyncio.sleep(BOUND_S)
        assert landed(broker) == at_last
        assert broker.fired.total() == 1

    run_virtually(main())


def test_what_queues_behind_a_failure_fails_with_it() -> None:
    """Records queued behind a failing one are unknown at its bound; others and later ones pass."""

    async def main() -> None:
        late = SendFate(kind="late", late_ms=1_000)
        slow = SendFate(ack_ms=10)
        broker = broker_with(Script(SendFate(kind="lose"), SendFate(), late, SendFate(), slow))
        writer = broker.writer("w")
        acks = [await writer.enqueue(*HERE, value) for value in (b"lost", b"behind", b"late")]
        assert (await writer.send(*THERE, b"other")).offset == 0
        results = await asyncio.gather(*acks, return_exceptions=True)
        assert [type(result) for result in results] == [SendUnknown] * 3
        assert now_s() == pytest.approx(BOUND_S)
        await writer.send(*HERE, b"after")
        await asyncio.sleep(2)
        assert landed(broker) == [b"after", b"late"]
        assert broker.fired == {"send.lose": 1, "send.collateral": 2, "send.delay": 1}

    run_virtually(main())


def test_slow_sends_keep_their_order() -> None:
    """A delayed record holds those behind it back, so that order is that of the enqueue calls."""

    async def main() -> None:
        broker = broker_with(Script(SendFate(land_ms=500, ack_ms=500), SendFate(land_ms=100)))
        writer = broker.writer("w")
        acks = [await writer.enqueue(*HERE, b"%d" % index) for index in range(4)]
        assert landed(broker) == []
        await asyncio.sleep(0.6)
        assert landed(broker) == [b"0"]
        assert [(await ack).offset for ack in acks] == [0, 1, 2, 3]
        assert now_s() == pytest.approx(1.1)
        assert landed(broker) == [b"0", b"1", b"2", b"3"]

    run_virtually(main())


@pytest.mark.parametrize(("idempotent", "copies"), [(True, 1), (False, 2)])
def test_duplicates(idempotent: bool, copies: int) -> None:
    """A doubled send lands twice, but only for a writer that is not idempotent."""

    async def main() -> None:
        broker = broker_with(Script(SendFate(kind="duplicate", late_ms=50)))
        assert (await broker.writer("w", idempotent=idempotent).send(*HERE, b"x")).offset == 0
        await asyncio.sleep(1)
        assert landed(broker) == [b"x"] * copies
        assert broker.fired["send.duplicate"] == copies - 1

    run_virtually(main())


def test_a_killed_writer_sends_nothing_more() -> None:
    """After a writer's death only what was in the network lands, and its later calls fail."""

    async def main() -> None:
        late = SendFate(kind="late", late_ms=1_000)
        broker = broker_with(Script(SendFate(land_ms=200), SendFate(), late))
        writer = broker.writer("w")
        acks = [await writer.enqueue(*HERE, value) for value in (b"net", b"buffer", b"late")]
        writer.kill()
        assert all(isinstance(ack.exception(), SendUnknown) for ack in acks)
        with pytest.raises(SendUnknown):
            await writer.send(*HERE, b"ghost")
        await asyncio.sleep(2 * BOUND_S)
        assert landed(broker) == [b"net", b"late"]

    run_virtually(main())


def test_closing_is_bounded() -> None:
    """Closing a writer with a lost send takes no longer than a send's bound."""

    async def main() -> None:
        broker = broker_with(Script(SendFate(kind="lose")))
        writer = broker.writer("w")
        ack = await writer.enqueue(*HERE, b"x")
        await writer.close()
        assert now_s() <= BOUND_S
        assert isinstance(ack.exception(), SendUnknown)

    run_virtually(main())


def test_closing_waits_for_slow_sends() -> None:
    """Closing a writer waits for an acknowledgement under way."""

    async def main() -> None:
        broker = broker_with(Script(SendFate(ack_ms=3_000)))
        writer = broker.writer("w")
        ack = await writer.enqueue(*HERE, b"x")
        await writer.close()
        assert now_s() == pytest.approx(3.0)
        assert ack.result().offset == 0

    run_virtually(main())


def test_an_acknowledgement_after_the_bound_is_ignored() -> None:
    """What comes of a failed send does not disturb the order of the later ones."""

    async def main() -> None:
        broker = broker_with(Script(SendFate(ack_ms=12_000), SendFate(land_ms=5_000)))
        writer = broker.writer("w")
        with pytest.raises(SendUnknown):
            await writer.send(*HERE, b"0")
        acks = [await writer.enqueue(*HERE, value) for value in (b"1", b"2")]
        assert [(await ack).offset for ack in acks] == [1, 2]
        assert landed(broker) == [b"0", b"1", b"2"]

    run_virtually(main())


def test_an_acknowledged_send_has_no_bound_any_more() -> None:
    """The bound of a send that was acknowledged strikes none of the later ones."""

    async def main() -> None:
        slow = SendFate(ack_ms=2_000)
        writer = broker_with(Script(slow, slow)).writer("w")
        await writer.send(*HERE, b"0")
        await asyncio.sleep(7)
        assert (await writer.send(*HERE, b"1")).offset == 1
        assert now_s() == pytest.approx(11.0)

    run_virtually(main())


def test_a_dropped_future_is_silent() -> None:
    """Nobody has to look at the future of a send that failed."""

    async def main() -> None:
        complaints: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        await broker_with(Script(SendFate(kind="lose"))).writer("w").enqueue(*HERE, b"x")
        await asyncio.sleep(2 * BOUND_S)
        gc.collect()
        assert not complaints

    run_virtually(main())


def test_topics_keep_their_size() -> None:
    """Creating an existing topic with another number of partitions is an error."""
    with pytest.raises(LogError):
        broker_with().create_topic("t", 3, {})


def test_a_full_buffer_makes_enqueue_wait() -> None:
    """Enqueue waits for room while the buffer is full, and no longer than its bound."""

    async def main() -> None:
        broker = broker_with(Script(SendFate(ack_ms=8_000), SendFate(kind="lose")))
        writer = broker.writer("w")
        acks = [await writer.enqueue(*HERE, b"x") for _ in range(1_024)]
        waited = await writer.enqueue(*HERE, b"waited")
        assert now_s() == pytest.approx(8.0)
        results = await asyncio.gather(*acks, waited, return_exceptions=True)
        assert sum(isinstance(result, SendUnknown) for result in results) == 1_024
        async with asyncio.timeout(1):
            for offset in range(1, 2_000):
                assert (await writer.send(*HERE, b"again")).offset == offset
        assert now_s() == pytest.approx(BOUND_S)

    run_virtually(main())


def test_append_times_never_run_backwards() -> None:
    """A clock that steps back does not take a partition's append times back."""

    class SteppingClock:
        def __init__(self) -> None:
            self._times_ms = iter((100, 40, 120))

        def now_ms(self) -> int:
            return next(self._times_ms)

        def monotonic_s(self) -> float:
            return 0.0

    async def main() -> None:
        broker = MemoryBroker(SteppingClock())
        broker.create_topic("t", 1, {})
        writer = broker.writer("w")
        times_ms = [(await writer.send(*HERE, b"x")).append_time_ms for _ in range(3)]
        assert times_ms == [100, 100, 120]

    run_virtually(main())


def test_a_run_repeats_exactly() -> None:
    """The same calls and fates give the same log, record for record."""

    async def main(runs: list[list[LogRecord]]) -> None:
        fates = (SendFate(land_ms=7), SendFate(kind="late", late_ms=3), SendFate(ack_ms=5))
        broker = broker_with(Script(*fates * 4))
        writers = [broker.writer(f"w{index}", send_timeout_ms=20) for index in range(3)]
        acks = [await writer.enqueue(*HERE, writer.name.encode()) for writer in writers * 4]
        await asyncio.gather(*acks, return_exceptions=True)
        await asyncio.sleep(1)
        runs.append(broker.partition(HERE).read(0, 100))

    runs: list[list[LogRecord]] = []
    run_virtually(main(runs))
    run_virtually(main(runs))
    assert len(runs[0]) > 3
    assert runs[0] == runs[1]
