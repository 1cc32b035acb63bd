"""Requests with an idempotency key on the memory log, in virtual time, over two gateways."""

import asyncio
from dataclasses import dataclass, field

import pytest

from gateway.claim_tail import ClaimTail
from gateway.claims import Claims
from gateway.errors import KeyReused, Overloaded, ReplyUnknown
from gateway.idempotency import fingerprint_of, scope_of
from gateway.keyed import KeyedReply, KeyedRequest
from infra.memory import MemoryBroker, NoFaults, SendFate
from infra.ports import TopicPartition
from infra.system import SystemEntropy
from schemas import limits
from schemas.codec import decode
from schemas.idempotency import IdempotencyRecord
from schemas.ids import RequestId
from schemas.replies import CloseReason, StopReason
from schemas.requests import RequestAccepted
from schemas.topics import IDEMPOTENCY, idempotency_partition, requests_topic
from tests.contract.virtual_time import LoopClock, VirtualLoop, run_virtually
from tests.gateway_platform import (
    IDENTITY,
    POOL,
    FakeWorker,
    Platform,
    answer_hello,
    canonical,
    platform,
    read_to_end,
    stay_silent,
    until,
)

HELLO = [72, 105, 33]
SCOPE = scope_of("acme", "default", "k")


@dataclass
class SendFates(NoFaults):
    """Gives the first sends of named writers the fates that a test chooses."""

    fates: dict[str, list[SendFate]] = field(default_factory=dict)

    def send(self, writer: str, place: TopicPartition, value: bytes) -> SendFate:
        """Take the writer's next fate, or deliver."""
        left = self.fates.get(writer)
        return left.pop(0) if left else SendFate()


def keyed_request(body: str = "hi", *, only_resume: bool = False) -> KeyedRequest:
    """Return one call under the key `k`."""
    return KeyedRequest(
        scope=SCOPE,
        fingerprint=fingerprint_of("POST", "/v1/messages", "v", body),
        canonical=canonical(),
        prompt_token_ids=[1, 2],
        identity=IDENTITY,
        request_id=RequestId(SystemEntropy().uuid()),
        only_resume=only_resume,
    )


async def call(p: Platform, gateway: int = 0) -> KeyedReply:
    """Send the call at a gateway."""
    return await p.gateways[gateway].keyed.submit(keyed_request())


async def answer(p: Platform, gateway: int = 0) -> tuple[list[int], str, bool]:
    """Send the call and read the reply to its end: tokens, id, replayed."""
    keyed = await call(p, gateway)
    tokens = await read_to_end(keyed.reply)
    await keyed.reply.release()
    return tokens, keyed.reply.request.request_id, keyed.replayed


async def said_slowly(worker: FakeWorker, request: RequestAccepted) -> None:
    """Say the three tokens a second apart."""
    await worker.start(request)
    for token in HELLO[:2]:
        await asyncio.sleep(1)
        await worker.say(request, token)
    await asyncio.sleep(1)
    await worker.say(request, HELLO[2], stop=StopReason.END)


def facts(p: Platform) -> list[IdempotencyRecord]:
    """Return what stands in the key's partition."""
    place = TopicPartition(IDEMPOTENCY, idempotency_partition(SCOPE))
    log = p.broker.partition(place)
    return [decode(record.value, IdempotencyRecord) for record in log.read(0, 10_000)]


def claimed_ids(p: Platform) -> set[str]:
    """Return the request ids that any claim named."""
    return {record.claimed.request_id for record in facts(p) if record.claimed is not None}


def test_a_retry_after_the_end_replays_the_stored_reply_at_any_gateway() -> None:
    """One request, one id, equal tokens; the end is noted for those who come later."""

    async def scenario() -> None:
        async with platform(gateway_count=2) as p:
            first = await answer(p)
            assert first[0] == HELLO and first[2] is False
            for gateway in (0, 1, 1):
                assert await answer(p, gateway) == (HELLO, first[1], True)
            assert [request.request_id for request in p.worker.seen] == [first[1]]
            held = p.gateways[1].claims.held(SCOPE)
            assert held is not None and held.done is not None and held.done.end_offset == 3
            assert p.worker.closes == [] and p.submission.open_count == 0

    run_virtually(scenario())


def test_concurrent_calls_over_two_gateways_share_one_generation() -> None:
    """Whoever's claim stands first starts it; all others attach to it, also mid-way."""

    async def scenario() -> None:
        async with platform(said_slowly, gateway_count=2) as p:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(answer(p, n % 2)) for n in range(20)]
                await asyncio.sleep(1.5)
                tasks += [group.create_task(answer(p, n % 2)) for n in range(4)]
            answers = [task.result() for task in tasks]
            assert {tuple(tokens) for tokens, _, _ in answers} == {tuple(HELLO)}
            assert len({request_id for _, request_id, _ in answers}) == 1
            assert sum(not replayed for _, _, replayed in answers) == 1
            assert len(p.worker.seen) == 1 and len(claimed_ids(p)) <= 2

    run_virtually(scenario())


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


def test_another_body_under_the_key_is_refused_at_every_gateway() -> None:
    """Nothing is sent for it, during and after the first one's generation."""

    async def scenario() -> None:
        async with platform(said_slowly, gateway_count=2) as p:
            keyed = await call(p)
            for _ in range(2):
                for gateway in p.gateways:
                    with pytest.raises(KeyReused):
                        await gateway.keyed.submit(keyed_request("other"))
                await read_to_end(keyed.reply)
            await keyed.reply.release()
            assert len(p.worker.seen) == 1

    run_virtually(scenario())


def test_a_reply_that_ended_without_a_token_frees_its_key() -> None:
    """The release follows the end in the log; the next call starts afresh under another id."""

    async def refuse_first(worker: FakeWorker, request: RequestAccepted) -> None:
        if len(worker.seen) == 1:
            await worker.close(request, CloseReason.LATE)
        else:
            await answer_hello(worker, request)

    async def scenario() -> None:
        async with platform(refuse_first, gateway_count=2) as p:
            keyed = await call(p)
            assert await read_to_end(keyed.reply) == []
            assert keyed.reply.end is not None
            assert keyed.reply.end.close_reason is CloseReason.LATE
            tokens, request_id, replayed = await answer(p, 1)
            assert (tokens, replayed) == (HELLO, False)
            assert request_id != keyed.reply.request.request_id
            released = [r.released for r in facts(p) if r.released is not None]
            assert released and len({r.nonce for r in released}) == 1

    run_virtually(scenario())


def test_a_reply_that_was_closed_after_tokens_keeps_its_key() -> None:
    """A retry gets the same tokens and the same end: what was billed is never run again."""

    async def break_off(worker: FakeWorker, request: RequestAccepted) -> None:
        await worker.start(request)
        await worker.say(request, 7)
        await worker.close(request, CloseReason.FAILED)

    async def scenario() -> None:
        async with platform(break_off, gateway_count=2) as p:
            for gateway in (0, 1, 0):
                keyed = await call(p, gateway)
                assert await read_to_end(keyed.reply) == [7]
                assert keyed.reply.end is not None
                assert keyed.reply.end.close_reason is CloseReason.FAILED
            assert len(p.worker.seen) == 1

    run_virtually(scenario())


def test_a_client_that_leaves_does_not_close_a_keyed_reply() -> None:
    """It runs to its end, and a retry gets all of it."""

    async def scenario() -> None:
        async with platform(said_slowly, gateway_count=2) as p:
            keyed = await call(p)
            await keyed.reply.release()
            await asyncio.sleep(limits.RESUMABLE_GRACE_MS / 1000 + 5)
            assert p.worker.closes == []
            assert (await answer(p, 1))[0] == HELLO

    run_virtually(scenario())


def test_a_keyed_reply_without_clients_is_closed_at_its_deadline() -> None:
    """Nobody waits, no worker answers: its gateway closes it all the same."""

    async def scenario() -> None:
        async with platform(stay_silent, deadline_ms=5_000) as p:
            keyed = await call(p)
            await keyed.reply.release()
            await asyncio.sleep(8)
            (closed,) = p.worker.closes
            assert closed.reason is CloseReason.DEADLINE
            assert p.reader.count == 0 and p.gateways[0].orphans.count == 0

    run_virtually(scenario())


def test_a_dead_gateways_reply_goes_on_at_another_one() -> None:
    """The rest of the stream comes from the log, gapless, while it is generated."""

    async def scenario() -> None:
        async with platform(said_slowly, gateway_count=2) as p:
            keyed = await call(p)
            await asyncio.sleep(1.5)
            await p.kill(0)
            assert await answer(p, 1) == (HELLO, keyed.reply.request.request_id, True)
            assert len(p.worker.seen) == 1 and p.worker.closes == []

    run_virtually(scenario())


def test_resuming_at_a_gateway_that_lags_behind_waits_for_the_claim() -> None:
    """A claim that stands in the log is found, however far the gateway has read."""

    async def scenario() -> None:
        async with platform(said_slowly, gateway_count=2) as p:
            p.running[1][1].cancel()
            keyed = await call(p)
            await asyncio.sleep(1.5)
            resuming = asyncio.create_task(
                p.gateways[1].keyed.submit(keyed_request(only_resume=True))
            )
            await asyncio.sleep(1)
            assert not resuming.done()
            p.running[1].append(asyncio.create_task(p.gateways[1].claim_tail.run()))
            assert await read_to_end((await resuming).reply) == HELLO
            await keyed.reply.release()

    run_virtually(scenario())


def test_resuming_under_a_key_that_holds_nothing_starts_nothing() -> None:
    """A client that is behind an event never gets another generation's rest."""

    async def scenario() -> None:
        async with platform() as p:
            with pytest.raises(ReplyUnknown):
                await p.gateways[0].keyed.submit(keyed_request(only_resume=True))
            assert facts(p) == [] and p.worker.seen == []

    run_virtually(scenario())


def test_a_claim_that_cannot_be_recorded_is_refused_and_sends_nothing() -> None:
    """The event goes out only after the own claim was read back; a dead log means 529."""

    async def scenario() -> None:
        lost = [SendFate(kind="lose")] * 1_000
        broker = MemoryBroker(LoopClock(), SendFates({"gateway-claims": lost}))
        async with platform(broker=broker, send_timeout_ms=100) as p:
            with pytest.raises(Overloaded, match="could not be recorded"):
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
