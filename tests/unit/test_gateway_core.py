"""The gateway's core on the memory log: submission, live replies, mailboxes."""

import asyncio
from collections.abc import Callable

import pytest

from gateway.errors import LogAway, Overloaded, ReplyBroken, show
from gateway.mailbox import Chunk
from gateway.submission import token_budget
from infra.memory import MemoryBroker, NoFaults, SendFate
from infra.ports import TopicPartition
from schemas import limits
from schemas.dialects.canonical import InvalidRequest
from schemas.operations import ProcessState
from schemas.replies import CloseReason, StopReason
from schemas.requests import RequestAccepted
from schemas.topics import REPLIES, requests_topic
from tests.contract.virtual_time import LoopClock, run_virtually
from tests.gateway_platform import (
    IDENTITY,
    POOL,
    WORKER,
    FakeWorker,
    Platform,
    answer_hello,
    canonical,
    platform,
    read_to_end,
    stay_silent,
    until,
)


class FirstRequestSend(NoFaults):
    """Gives the first send of a request the fate that a test chooses."""

    def __init__(self, fate: SendFate) -> None:
        self.fate: SendFate | None = fate

    def send(self, writer: str, place: TopicPartition, value: bytes) -> SendFate:
        """Strike once."""
        if place.topic == requests_topic(POOL) and self.fate is not None:
            fate, self.fate = self.fate, None
            return fate
        return SendFate()


def test_a_reply_is_followed_to_its_terminal() -> None:
    """All accepted tokens arrive in order, the cached count with the first only, then the end."""

    async def scenario() -> None:
        async with platform() as p:
            reply = await p.submission.submit(canonical(), [1, 2, 3], IDENTITY)
            chunks: list[Chunk] = [chunk async for chunk in reply]
            assert [t for chunk in chunks for t in chunk.token_ids] == [72, 105, 33]
            assert [chunk.cached_tokens for chunk in chunks] == [0, None, None]
            assert reply.end is not None and reply.end.terminal is not None
            await reply.release()
            assert p.submission.open_count == 0 and p.reader.count == 0
            assert p.worker.closes == []

    run_virtually(scenario())


def test_the_event_carries_one_locator_and_the_floor_of_before_the_send() -> None:
    """The floor is the tail's own next offset, taken before the send; times follow acceptance."""

    async def scenario() -> None:
        async with platform() as p:
            for _ in range(2):
                reply = await p.submission.submit(canonical(), [1], IDENTITY)
                assert reply.request.locator.floor <= p.reader.next_offset
                await read_to_end(reply)
                await reply.release()
            first, second = p.worker.seen
            assert (first.locator.partition, first.locator.incarnation) == (0, 7)
            assert first.locator.floor == 0 and second.locator.floor >= 4
            assert first.deadline_ms - first.admit_by_ms == (
                limits.DEADLINE_MS - limits.ADMIT_WITHIN_MS
            )
            assert first.gateway == "gateway-0/1" and first.seed != second.seed

    run_virtually(scenario())


def test_an_overflowed_mailbox_is_read_again_without_loss_or_doubling() -> None:
    """More mail than fits drops the mailbox; the rest comes from the log, each token once."""
    count = limits.MAILBOX_ENTRIES_MAX + 500

    async def talk(worker: FakeWorker, request: RequestAccepted) -> None:
        await worker.start(request)
        for token in range(count):
            await worker.say(request, token)
            if token == 10:
                await asyncio.sleep(0.05)
        await worker.say(request, count, stop=StopReason.END)

    async def scenario() -> None:
        async with platform(talk) as p:
            reply = await p.submission.submit(canonical(), [1], IDENTITY)
            first = [t for c in await reply.take(1_000) for t in c.token_ids]
            await until(lambda: p.reader.count == 0)  # the client does not read until all is over
            assert first + await read_to_end(reply) == list(range(count + 1))
            assert reply.overflows == 1
            await reply.release()

    run_virtually(scenario())


def test_a_re_read_reply_joins_the_tail_again() -> None:
    """After catching up the mailbox is filled by the tail once more, at the right record."""
    count = limits.MAILBOX_ENTRIES_MAX + 10
    more = asyncio.Event()

    async def talk(worker: FakeWorker, request: RequestAccepted) -> None:
        await worker.start(request)
        for token in range(count):
            await worker.say(request, token)
        await more.wait()
        for token in range(count, count + 20):
            await worker.say(request, token)
            await asyncio.sleep(0)
        await worker.say(request, stop=StopReason.END)

    async def scenario() -> None:
        async with platform(talk) as p:
            reply = await p.submission.submit(canonical(), [1], IDENTITY)
            await until(lambda: reply.accepted_count == count)
            tokens: list[int] = []
            while len(tokens) < count:
                tokens += [t for c in await reply.take(1_000) for t in c.token_ids]
            more.set()
            assert tokens + await read_to_end(reply) == list(range(count + 20))
            assert reply.overflows == 1
            await reply.release()

    run_virtually(scenario())


def test_tokens_of_a_superseded_attempt_are_never_delivered() -> None:
    """Only what the fold accepts reaches the client."""

    async def two_attempts(worker: FakeWorker, request: RequestAccepted) -> None:
        await worker.start(request, "a1")
        await worker.say(request, 1, attempt="a1")
        await worker.start(request, "a2")
        await worker.say(request, 99, attempt="a1")
        worker.tokens[request.request_id] = [1]
        await worker.say(request, 2, stop=StopReason.END, attempt="a2")

    async def scenario() -> None:
        async with platform(two_attempts) as p:
            reply = await p.submission.submit(canonical(), [1], IDENTITY)
            assert await read_to_end(reply) == [1, 2]
            await reply.release()

    run_virtually(scenario())


@pytest.mark.parametrize("kind", ["lose", "ack_lost", "late"])
def test_a_send_of_unknown_outcome_is_closed_before_the_answer(kind: str) -> None:
    """The id is closed as failed on the log before the error is raised; a late landing is dead."""

    async def scenario() -> None:
        fate = SendFate(kind=kind, late_ms=100)  # type: ignore[arg-type] # literal
        broker = MemoryBroker(LoopClock(), FirstRequestSend(fate))
        async with platform(stay_silent, broker=broker, send_timeout_ms=50) as p:
            with pytest.raises(ReplyBroken) as caught:
                await p.submission.submit(canonical(), [1], IDENTITY)
            assert caught.value.reason is CloseReason.FAILED
            shown = show(caught.value)
            assert (shown.status, shown.retry_after_s) == (503, limits.RETRY_AFTER_S)
            end = broker.partition(TopicPartition(REPLIES, 0)).bounds().end
            assert end == 1
            assert p.submission.open_count == 0 and p.reader.count == 0

    run_virtually(scenario())


def test_a_log_that_is_silent_for_long_refuses_new_requests_at_once() -> None:
    """The loss of one broker is waited for; after that clients get a 503 before work starts."""

    async def scenario() -> None:
        broker = MemoryBroker(LoopClock(), FirstRequestSend(SendFate(kind="lose")))
        async with platform(answer_hello, broker=broker, send_timeout_ms=10_000) as p:
            first = asyncio.create_task(p.submission.submit(canonical(), [1], IDENTITY))
            await asyncio.sleep(3)
            second = asyncio.create_task(p.submission.submit(canonical(), [1], IDENTITY))
            await asyncio.sleep(1)
            assert not first.done() and not second.done()
            with pytest.raises(LogAway) as caught:
                await p.submission.submit(canonical(), [1], IDENTITY)
            shown = show(caught.value)
            assert (shown.status, shown.retry_after_s) == (503, limits.RETRY_AFTER_S)
            for waiting in (first, second):
                with pytest.raises(ReplyBroken):
                    await waiting

    run_virtually(scenario())


def test_a_reply_that_finished_although_its_send_was_unknown_is_delivered() -> None:
    """An acknowledgement lost after the request ran to its end costs the client nothing."""

    async def scenario() -> None:
        broker = MemoryBroker(LoopClock(), FirstRequestSend(SendFate(kind="ack_lost")))
        async with platform(answer_hello, broker=broker, send_timeout_ms=200) as p:
            reply = await p.submission.submit(canonical(), [1], IDENTITY)
            assert await read_to_end(reply) == [72, 105, 33]
            await reply.release()

    run_virtually(scenario())


def test_a_reply_that_retention_took_is_broken_not_cut_short() -> None:
    """A dropped mailbox whose floor is gone from the log ends in an error."""
    count = limits.MAILBOX_ENTRIES_MAX + 10

    async def talk(worker: FakeWorker, request: RequestAccepted) -> None:
        await worker.start(request)
        for token in range(count):
            await worker.say(request, token)

    async def scenario() -> None:
        async with platform(talk) as p:
            reply = await p.submission.submit(canonical(), [1], IDENTITY)
            await until(lambda: reply.accepted_count == count)
            p.broker.truncate(TopicPartition(REPLIES, 0), 100)
            with pytest.raises(ReplyBroken, match="not in the log"):
                await read_to_end(reply)
            await reply.release()

    run_virtually(scenario())


def test_requests_above_the_bound_in_flight_are_refused() -> None:
    """Open replies are counted; at the bound the next request is refused before it is sent."""

    async def scenario() -> None:
        async with platform(stay_silent) as p:
            replies = [
                await p.submission.submit(canonical(), [1], IDENTITY)
                for _ in range(limits.GATEWAY_INFLIGHT_MAX)
            ]
            with pytest.raises(Overloaded, match="too many"):
                await p.submission.submit(canonical(), [1], IDENTITY)
            p.submission.close_all("test over")
            await until(lambda: p.reader.count == 0)
            for reply in replies:
                await reply.release()
            assert p.submission.open_count == 0

    run_virtually(scenario())


def _no_workers(p: Platform) -> None:
    p.workers.clear()


def _draining(p: Platform) -> None:
    p.submission.drain()


def _loading(p: Platform) -> None:
    loading = ProcessState.LOADING
    p.workers[:] = [
        type(WORKER)(
            process="w", incarnation="w/1", kind="worker", state=loading, pool=POOL, lanes=(1,)
        )
    ]


@pytest.mark.parametrize("spoil", [_no_workers, _draining, _loading])
def test_nothing_is_sent_where_nobody_can_serve(spoil: Callable[[Platform], None]) -> None:
    """Without a serving worker, or while draining, a request is refused and the log stays empty."""

    async def scenario() -> None:
        async with platform() as p:
            spoil(p)
            with pytest.raises(Overloaded):
                await p.submission.submit(canonical(), [1], IDENTITY)
            ends = [
                p.broker.partition(TopicPartition(requests_topic(POOL), lane)).bounds().end
                for lane in range(limits.LANES)
            ]
            assert sum(ends) == 0 and p.reader.count == 0

    run_virtually(scenario())


def test_the_token_budget_is_what_the_context_leaves() -> None:
    """max_tokens is clipped to the window and says so; without max_tokens it fills the window."""
    assert token_budget(canonical(8), 10, 64) == (8, False)
    assert token_budget(canonical(54), 10, 64) == (54, False)
    assert token_budget(canonical(55), 10, 64) == (54, True)
    assert token_budget(canonical(None), 10, 64) == (54, False)
    with pytest.raises(InvalidRequest, match="prompt is too long: 64 tokens > 63 maximum"):
        token_budget(canonical(1), 64, 64)
