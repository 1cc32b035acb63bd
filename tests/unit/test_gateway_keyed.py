"""Requests with an idempotency key on the memory log, in virtual time, over two gateways."""

import asyncio

import pytest

from gateway.errors import KeyReused, ReplyUnknown
from schemas import limits
from schemas.replies import CloseReason
from schemas.requests import RequestAccepted
from tests.contract.virtual_time import run_virtually
from tests.gateway_platform import (
    FakeWorker,
    answer_hello,
    platform,
    read_to_end,
    stay_silent,
)
from tests.keyed_calls import (
    HELLO,
    SCOPE,
    answer,
    call,
    claimed_ids,
    facts,
    keyed_request,
    said_slowly,
)


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
