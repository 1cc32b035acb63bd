"""Resuming, replaying and cancelling over real HTTP: two gateways, both dialects, both SDKs."""

import asyncio
import contextlib
import json
import random

import pytest

from schemas.ids import read_reply_id
from schemas.replies import CloseReason
from tests.gateway_calls import (
    ANTHROPIC,
    OPENAI,
    PATHS,
    body_of,
    check_shape,
    say,
    say_then_hang,
)
from tests.gateway_http import serve
from tests.gateway_platform import answer_hello, until
from tests.gateway_streams import (
    SSE,
    TEXT,
    cursor_of,
    events_of,
    headers,
    http,
    read_some,
    reply_id_of,
    until_broken,
)


@pytest.mark.parametrize("path", PATHS)
def test_a_finished_stream_is_resumed_from_every_event_at_every_gateway(path: str) -> None:
    """By reply id and by key, the rest after each event is exactly what the first client got."""

    async def scenario() -> None:
        async with serve(say(TEXT), gateway_count=2) as served:
            served.platform.worker.cached_tokens = 7
            body = body_of(path, stream=True, **_usage(path))
            sent = headers(served, path, idempotency_key="k")
            async with http(served) as first, http(served, 1) as other:
                whole = (await first.post(path, json=body, headers=sent)).content
                events = events_of(whole)
                assert len(events) > 10
                url = f"{path}/{reply_id_of(events)}"
                for index, event in enumerate(events):
                    rest = b"\n\n".join(events[index + 1 :])
                    for client in (first, other):
                        after = {"last-event-id": cursor_of(event)}
                        posted = await client.post(path, json=body, headers=sent | after)
                        got = await client.get(url, headers=headers(served, path) | SSE | after)
                        assert posted.status_code == got.status_code == 200
                        assert b"\n\n".join(events_of(posted.content)) == rest
                        assert b"\n\n".join(events_of(got.content)) == rest
                        assert posted.headers["idempotent-replayed"] == "true"
                again = await other.get(url, headers=headers(served, path) | SSE)
                assert events_of(again.content) == events
            assert len(served.platform.worker.seen) == 1

    asyncio.run(scenario())


def _usage(path: str) -> dict[str, object]:
    return {"stream_options": {"include_usage": True}} if path == OPENAI else {}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("keyed", [True, False])
def test_a_stream_that_is_cut_while_it_runs_is_resumed_gapless(path: str, keyed: bool) -> None:
    """Cut after each event and resumed elsewhere at once, the parts add up to the whole stream."""

    async def scenario() -> None:
        async with serve(say(TEXT, pause_s=0.02), gateway_count=2) as served:
            served.platform.worker.cached_tokens = 7

            async def cut_after(count: int) -> None:
                sent = (
                    headers(served, path, idempotency_key=f"k{count}")
                    if keyed
                    else headers(served, path, millstream_resumable="true")
                )
                async with http(served, count % 2) as one, http(served, 1 - count % 2) as other:
                    had = events_of(await read_some(one, path, sent, count))
                    url = f"{path}/{reply_id_of(had)}"
                    after = {"last-event-id": cursor_of(had[-1])}
                    if keyed:
                        body = body_of(path, stream=True)
                        rest = await other.post(path, json=body, headers=sent | after)
                    else:
                        rest = await other.get(url, headers=headers(served, path) | SSE | after)
                    whole = await other.get(url, headers=headers(served, path) | SSE)
                    assert had + events_of(rest.content) == events_of(whole.content)
                    last = events_of(whole.content)[-1]
                    assert b"message_stop" in last or b"[DONE]" in last

            await asyncio.gather(*(cut_after(count) for count in range(1, 14)))
            assert served.platform.worker.closes == []
            assert len(served.platform.worker.seen) == 13

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_that_is_cut_at_any_byte_is_resumed_gapless(path: str) -> None:
    """Whatever part of an event had come, the whole events of the client and the rest from the
    other gateway add up to the whole stream; a client that has none yet begins anew by its key."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def scenario() -> None:
        async with serve(say(TEXT, pause_s=0.02), gateway_count=2) as served:
            body = body_of(path, stream=True)

            async def cut_after(number: int, size: int) -> None:
                sent = headers(served, path, idempotency_key=f"k{number}")
                async with http(served, number % 2) as one, http(served, 1 - number % 2) as other:
                    raw = b""
                    async with one.stream("POST", path, json=body, headers=sent) as reply:
                        async for piece in reply.aiter_raw():
                            raw += piece
                            if len(raw) >= size:
                                break
                    had = events_of(raw[:size].rpartition(b"\n\n")[0])
                    after = {"last-event-id": cursor_of(had[-1])} if had else {}
                    rest = await other.post(path, json=body, headers=sent | after)
                    whole = await one.post(path, json=body, headers=sent)
                    assert had + events_of(rest.content) == events_of(whole.content)

            async with http(served) as client:
                sent = headers(served, path, idempotency_key="whole")
                length = len((await client.post(path, json=body, headers=sent)).content)
            cuts = [1, *(rng.randrange(1, length) for _ in range(15))]
            await asyncio.gather(*(cut_after(*cut) for cut in enumerate(cuts)))
            assert served.platform.worker.closes == []
            assert len(served.platform.worker.seen) == 1 + len(cuts)

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS)
def test_a_reply_is_read_whole_by_its_id_also_while_it_runs(path: str) -> None:
    """GET answers with JSON once the reply has ended, for streamed and for whole ones."""

    async def scenario() -> None:
        async with serve(say(TEXT, pause_s=0.02), gateway_count=2) as served:
            sent = headers(served, path, millstream_resumable="true")
            async with http(served) as one, http(served, 1) as other:
                had = events_of(await read_some(one, path, sent, 3))
                url = f"{path}/{reply_id_of(had)}"
                got = await other.get(url, headers=headers(served, path))
                assert got.status_code == 200
                assert TEXT in json.dumps(got.json(), ensure_ascii=False)
                whole = await one.post(path, json=body_of(path), headers=headers(served, path))
                twin = await other.get(f"{path}/{whole.json()['id']}", headers=sent)
                assert twin.content == whole.content

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS)
def test_ids_that_are_forged_foreign_or_gone_are_unknown(path: str) -> None:
    """404 in the dialect's shape; nothing is told about other orgs' replies."""

    async def scenario() -> None:
        async with serve(say("ab"), gateway_count=2) as served, http(served, 1) as client:
            good = headers(served, path)
            whole = await client.post(path, json=body_of(path), headers=good)
            reply_id = whole.json()["id"]
            other_path = OPENAI if path == ANTHROPIC else ANTHROPIC
            forged = reply_id[:-1] + ("a" if reply_id[-1] != "a" else "b")
            prefix = "chatcmpl-" if path == ANTHROPIC else "msg_"
            swapped = prefix + reply_id.removeprefix("msg_").removeprefix("chatcmpl-")
            for url in (
                f"{path}/{forged}",
                f"{path}/nonsense",
                f"{other_path}/{reply_id}",
                f"{other_path}/{swapped}",
            ):
                for answer in (
                    await client.get(url, headers=headers(served, url)),
                    await client.post(f"{url}/cancel", headers=headers(served, url)),
                ):
                    assert answer.status_code == 404
                    check_shape(url, answer)
            locator, _ = read_reply_id(reply_id, "acme", "default", served.deps.locator_key)
            place = served.platform.reader.partition if locator.partition == 0 else 1
            served.platform.truncate(place)
            gone = await client.get(f"{path}/{reply_id}", headers=good)
            assert gone.status_code == 404
            nobody = await client.get(f"{path}/{reply_id}")
            assert nobody.status_code == 401

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS)
def test_cancel_ends_a_reply_wherever_it_is_asked_for(path: str) -> None:
    """Streams break off with an error, the answer tells the outcome, a repeat changes nothing."""

    async def scenario() -> None:
        async with serve(say_then_hang, gateway_count=2) as served:
            sent = headers(served, path, idempotency_key="k")
            async with http(served) as one, http(served, 1) as other:
                had = events_of(await read_some(one, path, sent, 2))
                url = f"{path}/{reply_id_of(had)}"
                await asyncio.sleep(0.1)
                assert served.platform.worker.closes == []
                for client in (other, one):
                    answer = await client.post(f"{url}/cancel", headers=headers(served, path))
                    assert answer.status_code == 200 and answer.json()["status"] == "cancelled"
                assert len(served.platform.worker.closes) == 1
                again = await until_broken(other, "GET", url, headers(served, path) | SSE)
                assert again[: len(had)] == had and b"cancelled" in again[-1]
                whole = await other.get(url, headers=headers(served, path))
                assert whole.status_code == 410 and "cancelled" in check_shape(path, whole)

    asyncio.run(scenario())


def test_a_reply_that_ended_is_not_cancelled() -> None:
    """It stays complete, and the answer says so."""

    async def scenario() -> None:
        async with serve(answer_hello) as served, http(served) as client:
            sent = headers(served, ANTHROPIC)
            whole = await client.post(ANTHROPIC, json=body_of(ANTHROPIC), headers=sent)
            url = f"{ANTHROPIC}/{whole.json()['id']}"
            answer = await client.post(f"{url}/cancel", headers=sent)
            assert answer.json() == {
                "id": whole.json()["id"],
                "type": "message",
                "status": "completed",
            }
            assert (await client.get(url, headers=sent)).content == whole.content

    asyncio.run(scenario())


def test_a_resumable_reply_is_closed_after_its_grace_time_only() -> None:
    """Nobody comes back: it is cancelled then; somebody resumes at another gateway: it is not."""

    async def scenario() -> None:
        async with serve(say_then_hang, gateway_count=2, grace_ms=1_500) as served:
            sent = headers(served, ANTHROPIC, millstream_resumable="true")
            async with http(served) as one, http(served, 1) as other:
                await read_some(one, ANTHROPIC, sent, 2)
                had = events_of(await read_some(one, ANTHROPIC, sent, 2))
                first, second = (request.request_id for request in served.platform.worker.seen)
                url = f"{ANTHROPIC}/{reply_id_of(had)}"
                reading = asyncio.create_task(other.get(url, headers=sent | SSE))
                await until(lambda: bool(served.platform.worker.closes))
                await asyncio.sleep(1.5)
                assert [c.request_id for c in served.platform.worker.closes] == [first]
                assert served.platform.worker.closes[0].reason is CloseReason.CANCELLED
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await reading
                await until(lambda: len(served.platform.worker.closes) == 2)
                assert served.platform.worker.closes[1].request_id == second

    asyncio.run(scenario())


def test_without_opt_in_a_disconnect_closes_at_once() -> None:
    """The engine stops within a second."""

    async def scenario() -> None:
        async with serve(say_then_hang) as served, http(served) as client:
            await read_some(client, ANTHROPIC, headers(served, ANTHROPIC), 2)
            await until(lambda: bool(served.platform.worker.closes), 1)

    asyncio.run(scenario())


def test_several_clients_follow_one_reply_at_once() -> None:
    """Each gets the whole stream, wherever it joined; one that leaves disturbs nobody."""

    async def scenario() -> None:
        async with serve(say(TEXT, pause_s=0.03), gateway_count=2) as served:
            sent = headers(served, ANTHROPIC, millstream_resumable="true")
            async with http(served) as one, http(served, 1) as other:
                had = events_of(await read_some(one, ANTHROPIC, sent, 2))
                url = f"{ANTHROPIC}/{reply_id_of(had)}"
                gets = [client.get(url, headers=sent | SSE) for client in (one, other, one, other)]
                streams = [events_of(answer.content) for answer in await asyncio.gather(*gets)]
                assert all(stream == streams[0] for stream in streams)
                assert streams[0][: len(had)] == had and b"message_stop" in streams[0][-1]
            assert served.platform.worker.closes == []

    asyncio.run(scenario())


def test_a_drain_lets_resumable_replies_run_on() -> None:
    """Their clients get an error, never a clean end, and go on at the other gateway."""

    async def scenario() -> None:
        async with serve(say(TEXT, pause_s=0.05), gateway_count=2) as served:
            sent = headers(served, ANTHROPIC, idempotency_key="k")
            async with http(served) as one, http(served, 1) as other:
                body = body_of(ANTHROPIC, stream=True)
                reading = asyncio.create_task(until_broken(one, "POST", ANTHROPIC, sent, body))
                await asyncio.sleep(0.2)
                served.platform.submission.close_all("this gateway is shutting down")
                had = await reading
                assert b"shutting down" in had[-1]
                after = {"last-event-id": cursor_of(had[-2])}
                rest = await other.post(ANTHROPIC, json=body, headers=sent | after)
                whole = await other.post(ANTHROPIC, json=body, headers=sent)
                assert had[:-1] + events_of(rest.content) == events_of(whole.content)
            assert served.platform.worker.closes == []

    asyncio.run(scenario())
