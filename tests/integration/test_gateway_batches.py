"""Message batches over real HTTP: the official SDK against the memory log."""

import asyncio
import json
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types.messages import MessageBatch
from msgspec.structs import replace

from infra.ports import TopicPartition
from infra.system import SystemClock
from schemas import limits
from schemas.batches import ItemsEnded
from schemas.codec import decode
from schemas.replies import CloseReason, StopReason
from schemas.requests import RequestAccepted, RequestClass
from schemas.topics import BATCH_INPUTS, BATCH_RESULTS, batch_partition
from tests.batch_facts import created
from tests.gateway_calls import MESSAGES, headers_of, say_then_fail
from tests.gateway_http import MODEL, Served, ids_of, serve
from tests.gateway_platform import FakeWorker, until

PATH = "/v1/messages/batches"


def item(custom_id: str, **params: object) -> Any:
    """Return one request of a batch."""
    return {
        "custom_id": custom_id,
        "params": {"model": MODEL, "max_tokens": 9, "messages": MESSAGES, **params},
    }


def sdk_of(served: Served, gateway: int = 0) -> anthropic.AsyncAnthropic:
    """Return the official client."""
    return anthropic.AsyncAnthropic(
        base_url=served.urls[gateway], api_key=served.key, max_retries=0
    )


async def ended(sdk: anthropic.AsyncAnthropic, batch_id: str) -> MessageBatch:
    """Return a batch once it has ended; until then all its items are being processed."""
    async with asyncio.timeout(10):
        while True:
            batch = await sdk.messages.batches.retrieve(batch_id)
            counts = batch.request_counts
            if batch.processing_status == "ended":
                return batch
            assert batch.results_url is None and batch.ended_at is None
            others = counts.succeeded + counts.errored + counts.canceled + counts.expired
            assert others == 0 < counts.processing
            await asyncio.sleep(0.01)


class Gate:
    """A worker that answers `go` at once, and all else when it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def script(self, worker: FakeWorker, request: RequestAccepted) -> None:
        """Answer one request."""
        await worker.start(request)
        if request.identity.user != "go":
            await self.opened.wait()
        await worker.say(request, *ids_of("ok"), stop=StopReason.END)


def test_a_batch_with_the_official_sdk() -> None:
    """A good item, a bad one and some that are cancelled: counters, results, then deletion."""

    async def scenario() -> None:
        gate = Gate()
        async with serve(gate.script, gateway_count=2) as served:
            one, other = sdk_of(served), sdk_of(served, 1)
            requests = [
                item("good", metadata={"user_id": "go"}),
                item("bad", max_tokens=-1),
                *(item(f"slow-{n}") for n in range(20)),
            ]
            made = await one.messages.batches.create(requests=requests)
            assert made.processing_status == "in_progress"
            assert made.request_counts.processing == 22 and made.results_url is None
            assert (await other.messages.batches.retrieve(made.id)).id == made.id
            await until(lambda: len(served.platform.worker.seen) == 17)
            canceling = await other.messages.batches.cancel(made.id)
            assert canceling.processing_status == "canceling"
            assert canceling.cancel_initiated_at is not None
            assert (await one.messages.batches.cancel(made.id)).id == made.id
            with pytest.raises(anthropic.BadRequestError):
                await one.messages.batches.delete(made.id)
            early = await http_get(served, f"{PATH}/{made.id}/results")
            assert early.status_code == 404
            gate.opened.set()
            done = await ended(other, made.id)
            counts = done.request_counts
            assert (counts.succeeded, counts.errored, counts.canceled) == (17, 1, 4)
            assert counts.processing == counts.expired == 0
            assert done.results_url == f"{served.urls[1]}{PATH}/{made.id}/results"
            results = [result async for result in await other.messages.batches.results(made.id)]
            kinds = {result.custom_id: result.result.type for result in results}
            assert len(results) == len(kinds) == 22
            assert kinds["good"] == "succeeded" and kinds["bad"] == "errored"
            assert kinds["slow-19"] == "canceled"
            by_id = {result.custom_id: result.result for result in results}
            good, bad = by_id["good"], by_id["bad"]
            assert good.type == "succeeded" and good.message.content[0].type == "text"
            assert good.message.content[0].text == "ok"
            assert good.message.usage.service_tier == "batch"
            assert bad.type == "errored" and "max_tokens" in bad.error.error.message
            gone = await one.messages.batches.delete(made.id)
            assert gone.type == "message_batch_deleted" and gone.id == made.id
            with pytest.raises(anthropic.NotFoundError):
                await other.messages.batches.retrieve(made.id)
            await one.close()
            await other.close()

    asyncio.run(scenario())


async def http_get(served: Served, path: str) -> httpx.Response:
    """Return what a plain GET of the first gateway gets."""
    async with httpx.AsyncClient(base_url=served.url, verify=False) as client:
        return await client.get(path, headers=headers_of(path, served.key))


def test_batches_are_their_workspace_s_alone_and_listed_newest_first() -> None:
    """Pages follow each other in the SDK; another org finds nothing, whatever it asks."""

    async def scenario() -> None:
        async with serve(Gate().script, gateway_count=2) as served:
            sdk = sdk_of(served)
            ids = [
                (await sdk.messages.batches.create(requests=[item("a", max_tokens=-1)])).id
                for _ in range(3)
            ]
            for batch_id in ids:
                await ended(sdk, batch_id)
            listed = [batch.id async for batch in await sdk.messages.batches.list(limit=2)]
            assert sorted(listed) == sorted(ids) and listed[0] == ids[-1]
            before = await sdk.messages.batches.list(before_id=listed[-1], limit=1)
            assert [batch.id for batch in before.data] == [listed[1]] and before.has_more
            stranger = anthropic.AsyncAnthropic(
                base_url=served.urls[1], api_key=served.make_key("other")
            )
            assert (await stranger.messages.batches.list()).data == []
            for call in (
                stranger.messages.batches.retrieve,
                stranger.messages.batches.cancel,
                stranger.messages.batches.delete,
                stranger.messages.batches.results,
            ):
                with pytest.raises(anthropic.NotFoundError):
                    await call(ids[0])
            assert (await http_get(served, f"{PATH}/msgbatch_none")).status_code == 404
            assert (await http_get(served, f"{PATH}?limit=0")).status_code == 400
            await sdk.close()
            await stranger.close()

    asyncio.run(scenario())


BAD_ITEMS: list[tuple[dict[str, object], str]] = [
    ({"stream": True}, "stream"),
    ({"speed": "standard"}, "speed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"thread": {"type": "create"}}, "thread"),
    ({"model": "other"}, "model"),
    ({"frobnicate": 1}, "frobnicate"),
    ({"messages": [{"role": "user", "content": "x" * 20_000}]}, "too long"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "x"}}}}, "type"),
]


def test_what_an_item_may_not_ask_for_is_its_own_error() -> None:
    """Each bad item has the error of a call of its own; nothing of it reaches a worker."""

    async def scenario() -> None:
        async with serve(Gate().script) as served:
            sdk = sdk_of(served)
            made = await sdk.messages.batches.create(
                requests=[item(str(n), **params) for n, (params, _) in enumerate(BAD_ITEMS)]
            )
            assert (await ended(sdk, made.id)).request_counts.errored == len(BAD_ITEMS)
            async for result in await sdk.messages.batches.results(made.id):
                assert result.result.type == "errored"
                error = result.result.error
                assert error.request_id is not None and error.request_id.startswith("req_")
                assert BAD_ITEMS[int(result.custom_id)][1] in error.error.message
            assert served.platform.worker.seen == []
            await sdk.close()

    asyncio.run(scenario())


def test_a_bad_batch_is_refused_and_a_repeated_one_is_the_same() -> None:
    """Bodies that make no batch are 400; under a key the batch is made once, for any gateway."""

    async def scenario() -> None:
        async with (
            serve(Gate().script, gateway_count=2) as served,
            httpx.AsyncClient(verify=False) as client,
        ):

            async def post(body: object, key: str | None = None, gateway: int = 0) -> Any:
                headers = headers_of(PATH, served.key)
                if key is not None:
                    headers["idempotency-key"] = key
                url = f"{served.urls[gateway]}{PATH}"
                return await client.post(url, json=body, headers=headers)

            bodies: list[object] = [{}, [], {"requests": [item("a"), item("a")]}]
            for bad in bodies:
                assert (await post(bad)).status_code == 400
            body = {"requests": [item("a", max_tokens=-1)]}
            first, again = await post(body, "k"), await post(body, "k", 1)
            assert first.json()["id"] == again.json()["id"]
            assert again.headers["idempotent-replayed"] == "true"
            assert "idempotent-replayed" not in first.headers
            both = await asyncio.gather(*(post(body, "j", n) for n in (0, 1)))
            assert len({answer.json()["id"] for answer in both}) == 1
            other = await post({"requests": [item("b")]}, "k")
            assert other.status_code == 422
            assert (await http_get(served, PATH)).json()["data"][1]["id"] == first.json()["id"]

    asyncio.run(scenario())


def results_written(served: Served, batch_id: str) -> int:
    """Return how many results of a batch stand in the log, copies too."""
    log = served.platform.broker.partition(TopicPartition(BATCH_RESULTS, batch_partition(batch_id)))
    return sum(len(decode(record.value, ItemsEnded).items) for record in log.read(0, 1_000))


@pytest.mark.parametrize("how", ["killed", "drained", "together"])
def test_a_batch_that_moves_or_runs_twice_bills_each_item_once(how: str) -> None:
    """A gateway ends in the middle of a batch, or two run it at once: each item is generated once,
    the batch ends, and every item has one result."""

    async def scenario() -> None:
        gate = Gate()
        async with serve(gate.script, gateway_count=2) as served:
            sdk = sdk_of(served, 1)
            served.runners[1] = how == "together"
            done_first = {"metadata": {"user_id": "go"}}
            requests = [item(f"i{n}", **(done_first if n < 5 else {})) for n in range(30)]
            made = await sdk.messages.batches.create(requests=requests)
            seen = served.platform.worker.seen
            await until(lambda: len({request.request_id for request in seen}) >= 21)
            if how == "killed":
                await served.batches[0].stop()
                await served.platform.kill(0)
            elif how == "drained":
                served.batches[0].drain()
                async with sdk_of(served) as drained:
                    with pytest.raises(anthropic.OverloadedError):
                        await drained.messages.batches.create(requests=requests)
            if how != "together":
                served.runners[:] = [False, True]
            gate.opened.set()
            done = await ended(sdk, made.id)
            assert done.request_counts.succeeded == 30
            results = [result async for result in await sdk.messages.batches.results(made.id)]
            assert {result.custom_id for result in results} == {f"i{n}" for n in range(30)}
            assert len(results) == 30
            assert len({request.request_id for request in seen}) == 30
            assert {request.request_class for request in seen} == {RequestClass.BATCH}
            if how == "killed":
                assert results_written(served, made.id) == 30, "what was done is not done again"
            await sdk.close()

    asyncio.run(scenario())


async def fail_twice(worker: FakeWorker, request: RequestAccepted) -> None:
    """Close the first try as late, the second as failed, then answer."""
    tries = len(worker.answered)
    if tries <= 2:
        await worker.close(request, CloseReason.LATE if tries == 1 else CloseReason.FAILED)
        return
    await worker.start(request)
    await worker.say(request, *ids_of("ok"), stop=StopReason.END)


def test_an_item_that_met_no_worker_is_tried_again() -> None:
    """Ends without a token cost nothing: the item runs anew, under another id."""

    async def scenario() -> None:
        async with serve(fail_twice) as served:
            sdk = sdk_of(served)
            made = await sdk.messages.batches.create(requests=[item("a")])
            assert (await ended(sdk, made.id)).request_counts.succeeded == 1
            assert len({request.request_id for request in served.platform.worker.seen}) == 3
            await sdk.close()

    asyncio.run(scenario())


def test_an_item_whose_reply_failed_in_the_middle_is_an_error() -> None:
    """What was generated is billed once and not made again."""

    async def scenario() -> None:
        async with serve(say_then_fail) as served:
            sdk = sdk_of(served)
            made = await sdk.messages.batches.create(requests=[item("a")])
            assert (await ended(sdk, made.id)).request_counts.errored == 1
            (result,) = [one async for one in await sdk.messages.batches.results(made.id)]
            assert result.result.type == "errored"
            assert result.result.error.error.type == "api_error"
            assert len(served.platform.worker.seen) == 1
            await sdk.close()

    asyncio.run(scenario())


async def recorded(served: Served, *, age_ms: int, items: int = 2) -> str:
    """Record a batch that was made some time ago; return its id."""
    batches = served.batches[0]
    batch_id = batches.new_id("msgbatch_", next(iter(served.platform.control.keys.values())), None)
    writing = batches.contents.write(batch_id)
    for number in range(items):
        await writing.add(json.dumps(item(f"i{number}")).encode() + b"\n")
    fact = created(batch_id, item_count=items, created_ms=SystemClock().now_ms() - age_ms)
    await batches.ledger.append(replace(fact, content=await writing.finish()))
    return batch_id


def test_a_batch_expires_after_a_day_and_its_results_after_a_month() -> None:
    """What was not begun within 24 hours is expired; 29 days after its making it is listed only."""

    async def scenario() -> None:
        async with serve(Gate().script) as served:
            sdk = sdk_of(served)
            batch_id = await recorded(served, age_ms=limits.BATCH_DEADLINE_MS)
            done = await ended(sdk, batch_id)
            assert done.request_counts.expired == 2 and done.archived_at is None
            results = [one async for one in await sdk.messages.batches.results(batch_id)]
            assert {one.result.type for one in results} == {"expired"}
            old_id = await recorded(served, age_ms=limits.BATCH_RESULTS_KEPT_MS)
            old = await ended(sdk, old_id)
            assert old.archived_at is not None and old.results_url is None
            assert (await http_get(served, f"{PATH}/{old_id}/results")).status_code == 404
            assert {one.id async for one in await sdk.messages.batches.list()} == {batch_id, old_id}
            assert served.platform.worker.seen == []
            await sdk.close()

    asyncio.run(scenario())


def test_a_batch_whose_input_is_gone_ends_all_the_same() -> None:
    """Where the log does not keep the items any more, each counts as an error."""

    async def scenario() -> None:
        async with serve(Gate().script) as served:
            served.runners[0] = False
            batch_id = await recorded(served, age_ms=0, items=3)
            broker = served.platform.broker
            place = TopicPartition(BATCH_INPUTS, batch_partition(batch_id))
            broker.truncate(place, broker.partition(place).bounds().end)
            served.runners[0] = True
            sdk = sdk_of(served)
            assert (await ended(sdk, batch_id)).request_counts.errored == 3
            assert [one async for one in await sdk.messages.batches.results(batch_id)] == []
            await sdk.close()

    asyncio.run(scenario())
