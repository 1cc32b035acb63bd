"""Completions, responses and embeddings over real HTTP, by OpenAI's SDK, resumed, cancelled.

What all generating paths share is tested with messages and chat completions; here stands what the
other two must not lose of it.
"""

import asyncio
import json

import openai
import pytest

from schemas.ids import find_request_id
from tests.gateway_calls import (
    COMPLETIONS,
    RESPONSES,
    body_of,
    check_shape,
    fail,
    say,
    say_then_fail,
    say_then_hang,
)
from tests.gateway_http import MODEL, Served, ids_of, serve
from tests.gateway_platform import until
from tests.gateway_streams import (
    SSE,
    TEXT,
    cursor_of,
    events_of,
    headers,
    http,
    read_some,
    reply_id_of,
)

OTHERS = (COMPLETIONS, RESPONSES)


def sdk_of(served: Served) -> openai.AsyncOpenAI:
    """Return OpenAI's SDK as a user would make it."""
    return openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=served.key, max_retries=0)


def test_completions_stream_and_come_whole() -> None:
    """Both forms give the same text and usage; the prompt is continued as it stands."""

    async def scenario() -> None:
        async with serve(say(TEXT)) as served, sdk_of(served) as sdk:
            whole = await sdk.completions.create(model=MODEL, prompt="Once upon", max_tokens=50)
            assert whole.choices[0].text == TEXT and whole.choices[0].finish_reason == "stop"
            assert whole.usage and whole.usage.prompt_tokens == len(ids_of("Once upon"))
            stream = await sdk.completions.create(
                model=MODEL,
                prompt=ids_of("Once upon"),
                max_tokens=50,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
            assert "".join(c.choices[0].text for c in chunks if c.choices) == TEXT
            assert chunks[-1].usage == whole.usage
            asked = [request.prompt_token_ids for request in served.platform.worker.seen]
            assert asked[0] == asked[1] == tuple(ids_of("Once upon"))

    asyncio.run(scenario())


def test_responses_stream_and_come_whole() -> None:
    """The SDK's helper adds the events up to the response that a plain call returns."""

    async def scenario() -> None:
        async with serve(say(TEXT)) as served, sdk_of(served) as sdk:
            whole = await sdk.responses.create(
                model=MODEL, input="hi", instructions="Be brief.", metadata={"a": "b"}
            )
            assert whole.output_text == TEXT and whole.status == "completed"
            assert whole.instructions == "Be brief." and whole.metadata == {"a": "b"}
            async with sdk.responses.stream(
                model=MODEL, input="hi", instructions="Be brief.", metadata={"a": "b"}
            ) as stream:
                numbers = [event.sequence_number async for event in stream]
                final = await stream.get_final_response()
            assert numbers == sorted(set(numbers))
            assert final.output_text == TEXT and final.usage == whole.usage
            read = await sdk.responses.retrieve(whole.id)
            assert read.output_text == TEXT and read.id == whole.id
            assert find_request_id(whole.id) in {
                request.request_id for request in served.platform.worker.seen
            }

    asyncio.run(scenario())


def test_the_sdk_resumes_a_response_by_the_number_of_an_event() -> None:
    """`starting_after` leaves out what the client has, at every event; a bad query is refused."""

    async def scenario() -> None:
        async with serve(say(TEXT)) as served, sdk_of(served) as sdk:
            events = [
                e async for e in await sdk.responses.create(model=MODEL, input="hi", stream=True)
            ]
            first = events[0]
            assert first.type == "response.created"
            for number in range(len(events)):
                rest = await sdk.responses.retrieve(
                    first.response.id, stream=True, starting_after=number
                )
                assert [event async for event in rest] == events[number + 1 :]
            with pytest.raises(openai.BadRequestError) as refused:
                await sdk.responses.retrieve(first.response.id, stream=True, starting_after=-1)
            assert refused.value.param == "starting_after"
            with pytest.raises(openai.BadRequestError) as refused:
                await sdk.responses.retrieve(first.response.id, extra_query={"stream": "maybe"})
            assert refused.value.param == "stream"

    asyncio.run(scenario())


@pytest.mark.parametrize("path", OTHERS)
def test_a_stream_is_resumed_by_id_and_by_key(path: str) -> None:
    """From every event, at another gateway, the rest is what the first client got."""

    async def scenario() -> None:
        async with serve(say(TEXT), gateway_count=2) as served:
            body = body_of(path, stream=True)
            sent = headers(served, path, idempotency_key="k")
            async with http(served) as first, http(served, 1) as other:
                events = events_of((await first.post(path, json=body, headers=sent)).content)
                url = f"{path}/{reply_id_of(events)}"
                for index in range(0, len(events), 3):
                    rest = b"\n\n".join(events[index + 1 :])
                    after = {"last-event-id": cursor_of(events[index])}
                    posted = await other.post(path, json=body, headers=sent | after)
                    got = await other.get(url, headers=headers(served, path) | SSE | after)
                    assert b"\n\n".join(events_of(posted.content)) == rest
                    assert b"\n\n".join(events_of(got.content)) == rest
                asked = await other.get(f"{url}?stream=true", headers=headers(served, path))
                assert events_of(asked.content) == events
                whole = await other.get(url, headers=headers(served, path))
                assert TEXT in json.dumps(whole.json(), ensure_ascii=False)
                foreign = await other.get(f"/v1/messages/{reply_id_of(events)}", headers=sent)
                assert foreign.status_code == 404
            assert len(served.platform.worker.seen) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("path", OTHERS)
def test_a_reply_is_cancelled(path: str) -> None:
    """Cancelling answers once the end is certain; the stream then ends in an error."""

    async def scenario() -> None:
        async with serve(say_then_hang) as served, http(served) as client:
            sent = headers(served, path, millstream_resumable="true")
            had = events_of(await read_some(client, path, sent, 2))
            url = f"{path}/{reply_id_of(had)}"
            cancelled = await client.post(f"{url}/cancel", headers=headers(served, path))
            assert cancelled.status_code == 200 and cancelled.json()["status"] == "cancelled"
            assert cancelled.json()["object"] in ("text_completion", "response")
            gone = await client.get(url, headers=headers(served, path))
            assert gone.status_code == 410
            check_shape(path, gone)
            await until(lambda: bool(served.platform.worker.closes))

    asyncio.run(scenario())


@pytest.mark.parametrize("path", OTHERS)
def test_failures_are_told_in_openais_form(path: str) -> None:
    """Before the first token by a status; after it by an event that the SDK raises."""

    async def scenario() -> None:
        async with serve(fail) as served, http(served) as client:
            answer = await client.post(path, json=body_of(path), headers=headers(served, path))
            assert answer.status_code == 500
            check_shape(path, answer)
            assert answer.headers["openai-version"]
            bad = await client.post(
                path, json=body_of(path, nonsense=1), headers=headers(served, path)
            )
            assert bad.status_code == 400 and "nonsense" in check_shape(path, bad)
        async with serve(say_then_fail) as served, sdk_of(served) as sdk:
            if path == COMPLETIONS:
                with pytest.raises(openai.APIError):
                    async for _ in await sdk.completions.create(
                        model=MODEL, prompt="hi", stream=True
                    ):
                        pass
            else:
                with pytest.raises((openai.APIError, RuntimeError)):
                    async with sdk.responses.stream(model=MODEL, input="hi") as stream:
                        await stream.get_final_response()

    asyncio.run(scenario())


def test_embeddings_are_refused_clearly() -> None:
    """The SDK's call raises a 400 that names the model, after its fields were checked."""

    async def scenario() -> None:
        async with serve() as served, sdk_of(served) as sdk:
            with pytest.raises(openai.BadRequestError, match="makes no embeddings") as caught:
                await sdk.embeddings.create(model=MODEL, input="hi")
            assert caught.value.code == "model_not_supported" and caught.value.param == "model"
            with pytest.raises(openai.BadRequestError, match="input"):
                await sdk.embeddings.create(model=MODEL, input=[])
            with pytest.raises(openai.NotFoundError):
                await sdk.embeddings.create(model="text-embedding-3-small", input="hi")

    asyncio.run(scenario())
