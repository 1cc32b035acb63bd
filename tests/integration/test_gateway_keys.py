"""Idempotency keys over real HTTP: two gateways, both dialects, both SDKs."""

import asyncio

import anthropic
import openai
import pytest

from schemas.replies import CloseReason, StopReason
from schemas.requests import RequestAccepted
from tests.gateway_calls import (
    ANTHROPIC,
    MESSAGES,
    OPENAI,
    PATHS,
    body_of,
    check_shape,
    say,
)
from tests.gateway_http import MODEL, ids_of, serve
from tests.gateway_platform import FakeWorker, stay_silent
from tests.gateway_streams import (
    TEXT,
    headers,
    http,
)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_replay_is_the_same_to_the_byte(path: str, stream: bool) -> None:
    """Body and stream are equal, under a fresh request id; another body is refused with 422."""

    async def scenario() -> None:
        async with serve(say(TEXT), gateway_count=2) as served:
            served.platform.worker.cached_tokens = 7
            body = body_of(path, stream=stream)
            sent = headers(served, path, idempotency_key='"a b"')
            async with http(served) as one, http(served, 1) as other:
                first = await one.post(path, json=body, headers=sent)
                again = await other.post(f"/v1{path}", json=body, headers=sent)
                assert first.status_code == again.status_code == 200
                assert first.content == again.content
                assert "idempotent-replayed" not in first.headers
                assert again.headers["idempotent-replayed"] == "true"
                assert first.headers["request-id"] != again.headers["request-id"]
                refused = await other.post(path, json=body | {"max_tokens": 9}, headers=sent)
                assert refused.status_code == 422 and "key" in check_shape(path, refused)
            assert len(served.platform.worker.seen) == 1

    asyncio.run(scenario())


def test_a_hundred_calls_with_one_key_through_both_sdks_are_one_generation() -> None:
    """All get the same message from both gateways; one request reaches the workers."""

    async def scenario() -> None:
        async with serve(say(TEXT, pause_s=0.02), gateway_count=2) as served:
            extra = {"Idempotency-Key": "one"}
            clients = [
                anthropic.AsyncAnthropic(base_url=url, api_key=served.key) for url in served.urls
            ]
            bodies = await asyncio.gather(
                *(
                    clients[n % 2].messages.create(
                        model=MODEL, max_tokens=50, messages=MESSAGES, extra_headers=extra
                    )
                    for n in range(100)
                )
            )
            assert len({body.model_dump_json() for body in bodies}) == 1
            assert len({body._request_id for body in bodies}) == 100
            assert len(served.platform.worker.seen) == 1
            others = [
                openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=served.key) for url in served.urls
            ]
            answers = await asyncio.gather(
                *(
                    others[n % 2].chat.completions.create(
                        model=MODEL, messages=MESSAGES, extra_headers=extra | {"n": str(n)}
                    )
                    for n in range(4)
                ),
                return_exceptions=True,
            )
            assert all(isinstance(a, openai.UnprocessableEntityError) for a in answers)
            await asyncio.gather(*(sdk.close() for sdk in clients))
            await asyncio.gather(*(sdk.close() for sdk in others))

    asyncio.run(scenario())


def test_an_sdk_that_retries_a_lost_answer_pays_once() -> None:
    """The first answer is late, so nothing came; the SDK's own retry gets the stored reply."""

    async def overloaded_once(worker: FakeWorker, request: RequestAccepted) -> None:
        if len(worker.seen) == 1:
            await worker.close(request, CloseReason.LATE)
            return
        await worker.start(request)
        await worker.say(request, *ids_of("ok"), stop=StopReason.END)

    async def scenario() -> None:
        async with serve(overloaded_once, gateway_count=2) as served:
            async with openai.AsyncOpenAI(
                base_url=f"{served.url}/v1", api_key=served.key, max_retries=2
            ) as sdk:
                answer = await sdk.chat.completions.create(
                    model=MODEL, messages=MESSAGES, extra_headers={"Idempotency-Key": "k"}
                )
            assert answer.choices[0].message.content == "ok"
            first, second = served.platform.worker.seen
            assert first.request_id != second.request_id
            assert served.platform.worker.closes[0].request_id == first.request_id

    asyncio.run(scenario())


def test_refusals_are_not_stored() -> None:
    """After 400, 401 and 529 the same key with the same body, made good, starts a generation."""

    async def scenario() -> None:
        async with serve(say("ok")) as served, http(served) as client:
            sent = headers(served, OPENAI, idempotency_key="k")
            good = body_of(OPENAI)
            bad = await client.post(OPENAI, json=good | {"temperature": 9}, headers=sent)
            assert bad.status_code == 400
            stranger = await client.post(OPENAI, json=good, headers={"idempotency-key": "k"})
            assert stranger.status_code == 401
            workers = served.platform.workers[:]
            served.platform.workers.clear()
            assert (await client.post(OPENAI, json=good, headers=sent)).status_code == 529
            served.platform.workers.extend(workers)
            answer = await client.post(OPENAI, json=good, headers=sent)
            assert answer.status_code == 200 and "idempotent-replayed" not in answer.headers

    asyncio.run(scenario())


def test_a_key_that_was_never_used_has_nothing_to_resume() -> None:
    """A POST with a cursor and an unknown key is 404, and starts nothing."""

    async def scenario() -> None:
        async with serve(stay_silent) as served, http(served) as client:
            sent = headers(served, ANTHROPIC, idempotency_key="k", last_event_id="3-1")
            answer = await client.post(
                ANTHROPIC, json=body_of(ANTHROPIC, stream=True), headers=sent
            )
            assert answer.status_code == 404
            check_shape(ANTHROPIC, answer)
            assert served.platform.worker.seen == []

    asyncio.run(scenario())
