"""How replies end from outside: cancel, alarms, drain, and closes that get lost."""

import asyncio

import pytest

from gateway.errors import CutByDrain, ReplyBroken, show
from infra.memory import MemoryBroker, NoFaults, SendFate
from infra.ports import TopicPartition
from schemas import limits
from schemas.replies import CloseReason
from schemas.requests import RequestAccepted
from tests.contract.virtual_time import LoopClock, run_virtually
from tests.gateway_platform import (
    IDENTITY,
    FakeWorker,
    answer_hello,
    canonical,
    platform,
    read_to_end,
    stay_silent,
    until,
)


def test_release_before_the_end_closes_as_cancelled_once() -> None:
    """A client that leaves makes one close on the log, with header and identity."""

    async def scenario() -> None:
        async with platform(stay_silent) as p:
            reply = await p.submission.submit(canonical(), [1], IDENTITY)
            assert await reply.take(10) == []
            await reply.release()
            reply.close(CloseReason.CANCELLED)
            await p.closer.stop(5)
            await asyncio.sleep(0.05)
            (closed,) = p.worker.closes
            assert closed.reason is CloseReason.CANCELLED and closed.by == "gateway-0/1"
            assert closed.identity == IDENTITY and closed.header == reply.request.header
            assert p.reader.count == 0

    run_virtually(scenario())


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        ({"admit_within_ms": -limits.LATE_MARGIN_MS + 50}, CloseReason.LATE),
        ({"deadline_ms": 50}, CloseReason.DEADLINE),
    ],
)
def test_alarms_close_a_silent_reply(times: dict[str, int], reason: CloseReason) -> None:
    """Without a start by admit_by it is closed as late, at its deadline as deadline; read back."""

    async def scenario() -> None:
        async with platform(stay_silent, **times) as p:  # type: ignore[arg-type] # two ints
            reply = await p.submission.submit(canonical(), [1], IDENTITY)
            assert await read_to_end(reply) == []
            assert reply.end is not None and reply.end.close_reason is reason
            await reply.release()

    run_virtually(scenario())


def test_a_started_reply_is_not_late() -> None:
    """Once a start was read, only the deadline ends a silent reply."""

    async def start_only(worker: FakeWorker, request: RequestAccepted) -> None:
        await worker.start(request)

    async def scenario() -> None:
        async with platform(
            start_only, admit_within_ms=-limits.LATE_MARGIN_MS + 50, deadline_ms=250
        ) as p:
            reply = await p.submission.submit(canonical(), [1], IDENTITY)
            await read_to_end(reply)
            assert reply.end is not None and reply.end.close_reason is CloseReason.DEADLINE
            await reply.release()

    run_virtually(scenario())


def test_a_terminal_that_comes_before_the_close_wins() -> None:
    """The log decides: what the gateway wanted does not matter once a terminal stood first."""

    async def scenario() -> None:
        async with platform() as p:
            reply = await p.submission.submit(canonical(), [1], IDENTITY)
            await until(lambda: p.reader.count == 0)
            reply.close(CloseReason.CANCELLED)
            assert await read_to_end(reply) == [72, 105, 33]
            assert reply.end is not None and reply.end.terminal is not None
            await reply.release()

    run_virtually(scenario())


class FirstCloses(NoFaults):
    """Loses the first sends of the gateway's closer."""

    def __init__(self, count: int) -> None:
        self.left = count

    def send(self, writer: str, place: TopicPartition, value: bytes) -> SendFate:
        """Strike at closes only."""
        if writer == "gateway-closes" and self.left:
            self.left -= 1
            return SendFate(kind="lose")
        return SendFate()


def test_a_lost_close_is_sent_again_until_it_is_read_back() -> None:
    """The end of a cancelled reply does not depend on one send."""

    async def scenario() -> None:
        broker = MemoryBroker(LoopClock(), FirstCloses(2))
        async with platform(stay_silent, broker=broker, send_timeout_ms=20) as p:
            reply = await p.submission.submit(canonical(), [1], IDENTITY)
            await reply.release()
            await until(lambda: bool(p.worker.closes))
            assert len(p.worker.closes) == 1 and p.worker.closes[0].reason == "cancelled"
            await until(lambda: p.reader.count == 0 and p.closer.pending == 0)

    run_virtually(scenario())


def test_an_unreadable_log_ends_a_reply_with_an_error_not_a_hang() -> None:
    """A close that is never read back still answers the client, within its bound."""

    async def scenario() -> None:
        broker = MemoryBroker(LoopClock(), FirstCloses(1_000))
        async with platform(stay_silent, broker=broker, deadline_ms=20, send_timeout_ms=20) as p:
            reply = await p.submission.submit(canonical(), [1], IDENTITY)
            with pytest.raises(ReplyBroken) as caught:
                async with asyncio.timeout(limits.CLOSE_READ_BACK_MS / 1000 + 2):
                    while True:
                        await reply.take(1_000)
            assert caught.value.reason is CloseReason.DEADLINE
            await reply.release()

    run_virtually(scenario())


def test_a_client_behind_a_finished_reply_gets_all_of_it_even_past_its_deadline() -> None:
    """Once the end stands in the log no alarm rings; what is left is to hand it over."""

    async def scenario() -> None:
        async with platform(answer_hello, deadline_ms=200) as p:
            reply = await p.submission.submit(canonical(), [1], IDENTITY)
            await until(lambda: p.reader.count == 0)
            await asyncio.sleep(0.25)
            reply.close(CloseReason.CANCELLED)
            assert await read_to_end(reply) == [72, 105, 33]
            await reply.release()
            assert p.worker.closes == []

    run_virtually(scenario())


def test_a_gateway_that_drains_cuts_its_open_replies() -> None:
    """close_all ends every open reply as failed, read back from the log; the client is told to
    come back."""

    async def scenario() -> None:
        async with platform(stay_silent) as p:
            reply = await p.submission.submit(canonical(), [1], IDENTITY)
            p.submission.close_all("shutting down")
            await read_to_end(reply)
            assert reply.end is not None and reply.end.message == "shutting down"
            assert _told(reply.broken()) == (529, "shutting down", limits.RETRY_AFTER_S)
            await reply.release()

    run_virtually(scenario())


def test_a_drain_leaves_an_end_that_came_first() -> None:
    """A reply that its deadline had closed is told as that, though the gateway stops then."""

    async def scenario() -> None:
        async with platform(stay_silent) as p:
            reply = await p.submission.submit(canonical(), [1], IDENTITY)
            reply.close(CloseReason.DEADLINE)
            p.submission.close_all("shutting down")
            await read_to_end(reply)
            assert show(reply.broken()).status == 504
            await reply.release()

    run_virtually(scenario())


def test_a_drain_answers_where_the_log_does_not() -> None:
    """A cut whose close is never read back is told within its bound, and to come back too."""

    async def scenario() -> None:
        broker = MemoryBroker(LoopClock(), FirstCloses(1_000))
        async with platform(stay_silent, broker=broker, send_timeout_ms=20) as p:
            reply = await p.submission.submit(canonical(), [1], IDENTITY)
            p.submission.close_all("shutting down")
            with pytest.raises(CutByDrain) as caught:
                async with asyncio.timeout(limits.CLOSE_READ_BACK_MS / 1000 + 2):
                    while True:
                        await reply.take(1_000)
            assert _told(caught.value) == (529, "shutting down", limits.RETRY_AFTER_S)
            await reply.release()

    run_virtually(scenario())


def _told(error: Exception) -> tuple[int, str, int | None]:
    """Return what a client is told of an error."""
    shown = show(error)
    return shown.status, shown.message, shown.retry_after_s
