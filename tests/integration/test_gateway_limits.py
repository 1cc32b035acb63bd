"""Limits of an org over real HTTP: two gateways and the quota service on the memory log, both SDKs.

Most limits are so low that nothing refills while a test runs.
"""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.ask import Ask
from infra.ports import TopicPartition
from schemas.quota import Kind
from schemas.replies import (
    ChoiceTokens,
    Delta,
    Entry,
    StageTimes,
    Stop,
    StopReason,
    Terminal,
)
from schemas.requests import RequestAccepted
from schemas.topics import QUOTA_GRANTS
from tests.gateway_calls import OPENAI, PATHS, say
from tests.gateway_http import ids_of, quota_service, serve
from tests.gateway_platform import FakeWorker, until
from tests.limited_calls import COUNT, ask, demands, limit


async def say_cached(worker: FakeWorker, request: RequestAccepted) -> None:
    """Say three tokens."""
    await worker.start(request)
    await worker.say(request, *ids_of("abc"), stop=StopReason.END)


@pytest.mark.parametrize("path", [*PATHS, COUNT])
def test_a_limit_of_requests_holds_over_two_gateways_to_the_request(path: str) -> None:
    """Of eight requests to two gateways five pass; the others are told in the dialect's form."""

    async def scenario() -> None:
        async with serve(say("ok"), gateway_count=2, quota=True) as served:
            limit(served, requests_per_minute=5)
            answers = [await ask(served, path, number % 2) for number in range(8)]
            assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 3
            last = answers[-1]
            error = last.json()["error"]
            assert "5 requests per minute" in error["message"]
            assert 0 < int(last.headers["retry-after"]) <= 13
            assert "x-should-retry" not in last.headers
            if path == OPENAI:
                assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
                assert last.headers["x-ratelimit-limit-requests"] == "5"
                assert last.headers["x-ratelimit-remaining-requests"] == "0"
                assert last.headers["x-ratelimit-reset-requests"].endswith("s")
            else:
                assert error["type"] == "rate_limit_error"
                assert last.headers["anthropic-ratelimit-requests-limit"] == "5"
                assert last.headers["anthropic-ratelimit-requests-remaining"] == "0"
                reset = last.headers["anthropic-ratelimit-requests-reset"]
                left_s = datetime.fromisoformat(reset) - datetime.now(UTC)
                assert 50 < left_s.total_seconds() <= 61
            assert served.log.lines[-1]["reason"] == "requests_per_minute"
            exposed = served.deps.metrics.expose().decode()
            assert 'millstream_requests_limited_total{limit="requests_per_minute"}' in exposed

    asyncio.run(scenario())


def test_a_flood_beyond_the_limit_is_refused_at_once() -> None:
    """Only as many wait as a moment's refill can serve; the others hear so without delay."""

    async def scenario() -> None:
        async with serve(say_cached, quota=True) as served:
            limit(served, requests_per_minute=600)
            assert (await ask(served)).status_code == 200
            quota, org = served.deps.quota, served.deps.control.limits["acme"]
            lease, one = quota.lease(org), Ask(amounts=(1, 0, 0, 0))
            clock = asyncio.get_running_loop().time
            began_s = clock()
            lacks = await asyncio.gather(*(quota.take(lease, one) for _ in range(1_900)))
            assert clock() - began_s < 2
            assert 599 <= lacks.count(None) <= 599 + 600 * (clock() - began_s) / 60 + 1
            before = demands(served)
            began_s = clock()
            lacks = await asyncio.gather(*(quota.take(lease, one) for _ in range(500)))
            assert lacks.count(None) <= 600 * (clock() - began_s) / 60 + 4
            assert demands(served) - before < 40

    asyncio.run(scenario())


def test_headers_are_on_every_answer_and_only_for_limits_there_are() -> None:
    """Streamed, whole and refused answers of a limited org have them; without limits none has."""

    async def scenario() -> None:
        async with serve(say("ok"), quota=True) as served:
            plain = await ask(served)
            assert not [name for name in plain.headers if "ratelimit" in name]
            assert demands(served) == 0
            limit(served, requests_per_minute=8, output_tokens_per_minute=90_000)
            answers = [
                await ask(served),
                await ask(served, stream=True),
                await ask(served, max_tokens=-1),
                await ask(served, COUNT),
            ]
            assert [answer.status_code for answer in answers] == [200, 200, 400, 200]
            kinds = {"requests", "output-tokens", "tokens"}
            named = {
                f"anthropic-ratelimit-{kind}-{what}"
                for kind in kinds
                for what in ("limit", "remaining", "reset")
            }
            for answer in answers:
                assert {name for name in answer.headers if "ratelimit" in name} == named
                assert answer.headers["anthropic-ratelimit-tokens-limit"] == "90000"
                assert int(answer.headers["anthropic-ratelimit-tokens-remaining"]) % 1_000 == 0
            left = [int(a.headers["anthropic-ratelimit-requests-remaining"]) for a in answers]
            assert left == [7, 6, 6, 7], "a bad request costs nothing, counting has its own"
            other = await ask(served, OPENAI)
            assert {name for name in other.headers if "ratelimit" in name} == {
                f"x-ratelimit-{what}-{kind}"
                for kind in ("requests", "tokens")
                for what in ("limit", "remaining", "reset")
            }

    asyncio.run(scenario())


def test_an_unlimited_org_costs_no_record_and_a_limited_one_not_one_each() -> None:
    """Leases are sized ahead: forty requests one after the other take few demands."""

    async def scenario() -> None:
        async with serve(say_cached, quota=True) as served:
            for _ in range(10):
                assert (await ask(served)).status_code == 200
            assert demands(served) == 0
            limit(served, requests_per_minute=6_000, input_tokens_per_minute=1_000_000)
            for _ in range(40):
                assert (await ask(served)).status_code == 200
            assert 0 < demands(served) < 12

    asyncio.run(scenario())


def test_input_is_charged_as_the_prompt_and_too_long_a_prompt_never_passes() -> None:
    """The first of two prompts takes the bucket; one larger than it is not to be retried."""

    async def scenario() -> None:
        async with serve(say("ok"), quota=True) as served:
            used = (await ask(served)).json()["usage"]["input_tokens"]
            limit(served, input_tokens_per_minute=used + used // 2)
            assert (await ask(served)).status_code == 200
            refused = await ask(served, OPENAI)
            assert refused.status_code == 429
            assert refused.json()["error"]["type"] == "tokens"
            assert 0 < int(refused.headers["retry-after"]) <= 60
            limit(served, input_tokens_per_minute=used - 1)
            never = await ask(served)
            assert never.status_code == 429 and "never" in never.json()["error"]["message"]
            assert never.headers["x-should-retry"] == "false"
            assert "retry-after" not in never.headers

    asyncio.run(scenario())


def test_cached_input_is_given_back_at_the_end() -> None:
    """What the prefix cache held did not count: the second prompt finds room for itself again."""

    async def cached(worker: FakeWorker, request: RequestAccepted) -> None:
        await worker.start(request)
        said, prompt = tuple(ids_of("ok")), request.header.prompt_tokens
        stop = Stop(reason=StopReason.END)
        terminal = Terminal(
            stops=(stop,),
            stages=StageTimes(taken_ms=1, started_ms=1, first_token_ms=1, finished_ms=1),
            tokens=(ChoiceTokens(segment=0, choice=0, token_ids=said),),
        )
        delta = Delta(
            request_id=request.request_id,
            attempt="a1",
            segment=0,
            choice=0,
            first_index=0,
            token_ids=said,
            cached_tokens=prompt - 1,
            stop=stop,
            terminal=terminal,
        )
        await worker.append(request, Entry(delta=delta))

    async def scenario() -> None:
        async with serve(cached, quota=True) as served:
            first = (await ask(served)).json()["usage"]
            prompt = first["input_tokens"] + first["cache_read_input_tokens"]
            limit(served, input_tokens_per_minute=prompt + 5)
            for _ in range(5):
                assert (await ask(served)).status_code == 200

    asyncio.run(scenario())


def test_a_call_that_loses_the_race_for_a_key_gets_back_what_it_paid() -> None:
    """Ten calls under one key at two gateways are one request, whoever started it."""

    async def scenario() -> None:
        async with serve(say("ok", pause_s=0.02), gateway_count=2, quota=True) as served:
            limit(served, requests_per_minute=12)
            keyed: Any = {"headers": {"idempotency-key": "one"}}
            calls = (ask(served, gateway=number % 2, **keyed) for number in range(10))
            answers = await asyncio.gather(*calls)
            assert [answer.status_code for answer in answers] == [200] * 10
            assert len(served.platform.worker.seen) == 1
            rest = [(await ask(served, gateway=number % 2)).status_code for number in range(14)]
            assert rest.count(200) in (11, 12), "one more may have refilled"

    asyncio.run(scenario())


def test_output_is_charged_as_it_is_made_and_max_tokens_reserves_nothing() -> None:
    """A reply may overdraw the bucket; requests are refused until it has refilled."""

    async def scenario() -> None:
        async with serve(say("abcdefghij"), quota=True) as served:
            limit(served, output_tokens_per_minute=6)
            assert (await ask(served, max_tokens=3_000)).status_code == 200
            await until(lambda: demands(served) > 1)
            refused = await ask(served)
            assert refused.status_code == 429
            assert "6 output tokens per minute" in refused.json()["error"]["message"]
            assert 40 <= int(refused.headers["retry-after"]) <= 60

    asyncio.run(scenario())


def test_requests_in_flight_are_bounded_over_gateways_and_free_at_the_end() -> None:
    """Two may run, wherever; a third is refused until one has ended."""

    async def scenario() -> None:
        end = asyncio.Event()

        async def wait_then_say(worker: FakeWorker, request: RequestAccepted) -> None:
            await worker.start(request)
            await end.wait()
            await worker.say(request, *ids_of("ok"), stop=StopReason.END)

        async with serve(wait_then_say, gateway_count=2, quota=True) as served:
            limit(served, concurrency=2)
            running = [asyncio.create_task(ask(served, gateway=number)) for number in range(2)]
            await until(lambda: len(served.platform.worker.seen) == 2)
            refused = await ask(served)
            assert refused.status_code == 429
            assert "2 concurrent requests" in refused.json()["error"]["message"]
            assert refused.headers["retry-after"] == "1"
            end.set()
            assert [(await task).status_code for task in running] == [200, 200]
            assert (await ask(served, gateway=1)).status_code == 200

    asyncio.run(scenario())


def test_a_replay_meets_no_limit_and_costs_nothing() -> None:
    """The repeat of a keyed request is answered by any gateway though the bucket is empty."""

    async def scenario() -> None:
        async with serve(say("ok"), gateway_count=2, quota=True) as served:
            limit(served, requests_per_minute=2)
            keyed: Any = {"headers": {"idempotency-key": "one"}}
            first = await ask(served, **keyed)
            repeats = [await ask(served, gateway=number % 2, **keyed) for number in range(4)]
            assert [answer.status_code for answer in (first, *repeats)] == [200] * 5
            assert repeats[0].headers["anthropic-ratelimit-requests-remaining"] == "1"
            assert (await ask(served, gateway=1)).status_code == 200
            assert (await ask(served)).status_code == 429
            again = await ask(served, **keyed)
            assert again.status_code == 200 and again.headers["idempotent-replayed"] == "true"
            other = await ask(served, headers={"idempotency-key": "two"})
            assert other.status_code == 429, "a refusal is not stored, and no claim is made"

    asyncio.run(scenario())


def test_a_gateway_that_stops_gives_back_what_it_holds() -> None:
    """Another one has it at once, without waiting for the lease's term."""

    async def scenario() -> None:
        async with serve(say("ok"), gateway_count=2, quota=True) as served:
            limit(served, requests_per_minute=16)
            assert (await ask(served)).status_code == 200
            lease = served.deps.quota.lease(served.deps.control.limits["acme"])
            await until(lambda: lease.left[Kind.REQUESTS] > 0 and not lease.asking)
            await served.deps.quota.stop()
            await until(lambda: not lease.asking)
            assert lease.left[Kind.REQUESTS] == 0
            other = [(await ask(served, gateway=1)).status_code for _ in range(18)]
            assert other.count(200) in (15, 16), "one more may have refilled"

    asyncio.run(scenario())


def test_without_the_service_each_gateway_goes_by_its_share() -> None:
    """After a bounded wait half of the limit passes at each of two gateways, then no more; when the
    service is back, it knows of what was spent."""

    async def scenario() -> None:
        async with serve(say("ok"), gateway_count=2, quota=True) as served:
            served.service[0].cancel()
            await asyncio.gather(*served.service, return_exceptions=True)
            limit(served, requests_per_minute=6)
            answers = [
                await asyncio.gather(*(ask(served, gateway=gateway) for _ in range(5)))
                for gateway in (0, 1)
            ]
            for at_one in answers:
                assert sorted(each.status_code for each in at_one) == [200] * 3 + [429] * 2
            again = quota_service(served.platform.broker, "stream-app/2")
            leases = [deps.quota.lease(deps.control.limits["acme"]) for deps in served.all_deps]
            await until(lambda: not any(lease.away for lease in leases))
            more = [(await ask(served, gateway=number % 2)).status_code for number in range(4)]
            assert more.count(200) <= 1, "a full bucket would let four pass"
            again.cancel()

    asyncio.run(scenario())


def test_a_service_that_restarts_continues_where_the_log_stands() -> None:
    """A second service neither fills buckets anew nor empties them; the first one's grants end."""

    async def scenario() -> None:
        async with serve(say("ok"), gateway_count=2, quota=True) as served:
            limit(served, requests_per_minute=8)
            before = [await ask(served, gateway=number % 2) for number in range(4)]
            again = quota_service(served.platform.broker, "stream-app/2")
            grants = TopicPartition(QUOTA_GRANTS, 0)
            end = served.platform.broker.partition(grants).bounds
            stood = end().end
            await until(lambda: end().end > stood)
            after = [await ask(served, gateway=number % 2) for number in range(8)]
            passed = [each.status_code for each in (*before, *after)].count(200)
            assert passed in (8, 9), "one more may have refilled"
            again.cancel()

    asyncio.run(scenario())
