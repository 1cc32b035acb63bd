"""Claims of idempotency keys over two gateways: races, losses, deaths, releases, the day's end."""

import asyncio

import pytest

from gateway.claim_tail import ClaimTail
from gateway.claims import Claims
from gateway.errors import LogAway, Overloaded
from infra.memory import MemoryBroker, SendFate
from infra.ports import TopicPartition
from schemas import limits
from schemas.replies import CloseReason
from schemas.topics import requests_topic
from tests.contract.virtual_time import LoopClock, VirtualLoop, run_virtually
from tests.gateway_platform import (
    POOL,
    answer_hello,
    platform,
    until,
)
from tests.keyed_calls import (
    HELLO,
    SCOPE,
    SendFates,
    answer,
    call,
    claimed_ids,
    facts,
)


@pytest.mark.parametrize("first", ["deliver", "lose", "ack_lost", "late", "duplicate"])
@pytest.mark.parametrize("second", ["deliver", "lose", "ack_lost", "late"])
def test_claims_that_race_or_get_lost_start_one_generation(first: str, second: str) -> None:
    """Whatever becomes of the claims' sends, one id is sent and both callers get its tokens."""

    async def scenario() -> None:
        faults = SendFates()
        for name, kind in (("gateway-claims", first), ("gateway1-claims", second)):
            fate = SendFate(kind=kind, land_ms=5, late_ms=40)  # type: ignore[arg-type] # literal
            faults.fates[name] = [fate]
        broker = MemoryBroker(LoopClock(), faults)
        async with platform(answer_hello, broker=broker, gateway_count=2, send_timeout_ms=50) as p:
            one, other = await asyncio.gather(answer(p, 0), answer(p, 1))
            assert one[0] == other[0] == HELLO and one[1] == other[1]
            assert {request.request_id for request in p.worker.seen} == {one[1]}
            await asyncio.sleep(1)  # late copies land now
            assert await answer(p, 1) == (HELLO, one[1], True)

    run_virtually(scenario())


@pytest.mark.parametrize("kind", ["lose", "ack_lost", "late"])
def test_an_event_that_got_lost_is_sent_again_under_the_claims_ids(kind: str) -> None:
    """The caller waits a little longer and gets its reply; copies are equal to the byte."""

    async def scenario() -> None:
        fate = SendFate(kind=kind, late_ms=10)  # type: ignore[arg-type] # literal
        broker = MemoryBroker(LoopClock(), SendFates({"gateway-requests": [fate]}))
        async with platform(answer_hello, broker=broker, send_timeout_ms=50) as p:
            assert (await answer(p))[0] == HELLO
            assert len({request.request_id for request in p.worker.seen}) == 1
            assert all(request == p.worker.seen[0] for request in p.worker.seen)
            assert p.worker.closes == []

    run_virtually(scenario())


def test_a_claim_whose_gateway_died_before_the_event_is_carried_on_by_a_retry() -> None:
    """The retry sees nothing for 2 s, then sends the event under the claim's ids to its lane."""

    async def scenario() -> None:
        lost = [SendFate(kind="lose")] * 10
        broker = MemoryBroker(LoopClock(), SendFates({"gateway-requests": lost}))
        async with platform(answer_hello, broker=broker, gateway_count=2) as p:
            orphan = asyncio.create_task(call(p, 0))
            await until(lambda: bool(facts(p)))
            await p.kill(0)
            orphan.cancel()
            began_s = asyncio.get_running_loop().time()
            tokens, request_id, replayed = await answer(p, 1)
            waited_s = asyncio.get_running_loop().time() - began_s
            assert (tokens, replayed) == (HELLO, True) and {request_id} == claimed_ids(p)
            assert 2 <= waited_s < 3
            (event,) = p.worker.seen
            held = p.gateways[1].claims.held(SCOPE)
            assert held is not None and held.claim.lane == event.lane
            assert (event.gateway, event.keyed) == ("gateway-0/1", True)
            assert event.admit_by_ms == held.claim.admit_by_ms

    run_virtually(scenario())


def test_a_claim_that_is_too_old_to_start_is_closed_freed_and_claimed_anew() -> None:
    """A retry after admit_by gets a new generation, and the old id never counts a token."""

    async def scenario() -> None:
        lost = [SendFate(kind="lose")] * 10
        broker = MemoryBroker(LoopClock(), SendFates({"gateway-requests": lost}))
        async with platform(answer_hello, broker=broker, gateway_count=2) as p:
            orphan = asyncio.create_task(call(p, 0))
            await until(lambda: bool(facts(p)))
            await p.kill(0)
            orphan.cancel()
            await asyncio.sleep(60)
            tokens, request_id, replayed = await answer(p, 1)
            assert (tokens, replayed) == (HELLO, False)
            (late,) = p.worker.closes
            assert late.reason is CloseReason.LATE and late.request_id != request_id
            kinds = [(r.claimed and "c") or (r.released and "r") or "d" for r in facts(p)]
            assert "".join(kinds).replace("rr", "r").startswith("crc")

    run_virtually(scenario())


def test_a_claim_that_cannot_be_recorded_is_refused_and_sends_nothing() -> None:
    """The event goes out only after the own claim was read back; a dead log means 503."""

    async def scenario() -> None:
        lost = [SendFate(kind="lose")] * 1_000
        broker = MemoryBroker(LoopClock(), SendFates({"gateway-claims": lost}))
        async with platform(broker=broker, send_timeout_ms=100) as p:
            with pytest.raises(LogAway, match="could not be recorded"):
                await call(p)
            ends = [
                broker.partition(TopicPartition(requests_topic(POOL), lane)).bounds().end
                for lane in range(limits.LANES)
            ]
            assert sum(ends) == 0 and p.reader.count == 0

    run_virtually(scenario())


def test_more_claims_than_memory_holds_are_refused_before_anything_is_sent() -> None:
    """A full book means 529 for new keys; it neither forgets claims nor grows."""

    async def scenario() -> None:
        async with platform() as p:
            await answer(p)
            reader, writer = p.broker.reader("more"), p.broker.writer("more")
            tail = ClaimTail(reader=reader, clock=LoopClock(), claims_max=1)
            claims = Claims(writer=writer, clock=LoopClock(), tail=tail)
            claims.require_room()
            while not tail.caught_up:
                await tail.run_once()
            with pytest.raises(Overloaded, match="idempotency keys"):
                claims.require_room()

    run_virtually(scenario())


def test_a_key_is_free_again_after_a_day() -> None:
    """The next call after 24 hours runs anew, although the log still holds the claim."""

    async def scenario() -> None:
        async with platform(gateway_count=2) as p:
            first = await answer(p)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            loop.jump(limits.IDEMPOTENCY_MS / 1000 + 1)
            second = await answer(p, 1)
            assert second[0] == HELLO and second[1] != first[1] and second[2] is False
            assert await answer(p, 0) == (HELLO, second[1], True)

    run_virtually(scenario())


def test_a_gateway_that_starts_late_knows_all_claims() -> None:
    """Its tail begins at the start of the window, and it is ready only once it has caught up."""

    async def scenario() -> None:
        async with platform(gateway_count=2) as p:
            for task in p.running[1]:
                task.cancel()
            first = await answer(p)
            tail = p.gateways[1].claim_tail
            while not tail.caught_up or p.gateways[1].claims.held(SCOPE) is None:
                await tail.run_once()
            p.running[1].append(asyncio.create_task(p.gateways[1].replies.run()))
            assert await answer(p, 1) == (HELLO, first[1], True)

    run_virtually(scenario())
