"""Batches on the whole platform: the official SDKs, two gateways, kill -9 in the middle."""

import json
from typing import Any

import anthropic
import openai

from gateway.batches.placement import runner_of
from schemas.ids import find_request_id
from schemas.operations import ProcessReported, ProcessState
from tests.integration.platform import MODEL, Platform, eventually

SLOW_ITEMS = 40
SLOW_TOKENS = 150
ENDS_WITHIN_S = 40.0


def item(custom_id: str, **params: object) -> Any:
    """Return one request of a batch, which takes most of a second."""
    content = [{"role": "user", "content": f"Tell me of {custom_id}."}]
    body = {"model": MODEL, "max_tokens": SLOW_TOKENS, "messages": content, "ignore_eos": True}
    return {"custom_id": custom_id, "params": body | params}


def runner(batch_id: str) -> str:
    """Return which gateway of the pair runs a batch."""
    names = ("gateway-0", "gateway-1")
    reports = [
        ProcessReported(process=name, incarnation=name, kind="gateway", state=ProcessState.SERVING)
        for name in names
    ]
    name = runner_of(batch_id, reports)
    assert name is not None
    return name


def wait_ended(sdk: anthropic.Anthropic, batch_id: str) -> Any:
    """Return a batch once it has ended; its counts add up to the same at all times."""
    seen: list[Any] = []

    def is_over() -> bool:
        batch = sdk.messages.batches.retrieve(batch_id)
        counts = batch.request_counts
        rest = counts.succeeded + counts.errored + counts.canceled + counts.expired
        over = batch.processing_status == "ended"
        assert (counts.processing if over else rest) == 0, "counted before or after the end"
        seen[:] = [batch]
        return over

    eventually(is_over, ENDS_WITHIN_S, "the batch ends")
    return seen[0]


def test_a_cancelled_batch_finishes_what_runs(pair: Platform) -> None:
    """A good item, a bad one, and those that were not begun, with the official SDK."""
    with anthropic.Anthropic(base_url=pair.url, api_key=pair.key) as sdk:
        requests = [
            item("good", max_tokens=3),
            item("bad", max_tokens=-1),
            *(item(f"i{n}") for n in range(SLOW_ITEMS)),
        ]
        made = sdk.messages.batches.create(requests=requests)
        assert made.request_counts.processing == len(requests)
        eventually(lambda: pair.engine_load() > 0, 10.0, "items run")
        assert sdk.messages.batches.cancel(made.id).processing_status == "canceling"
        counts = wait_ended(sdk, made.id).request_counts
        assert counts.errored == 1 and counts.canceled > 0 and counts.expired == 0
        assert counts.succeeded + counts.canceled == len(requests) - 1
        results = {result.custom_id: result for result in sdk.messages.batches.results(made.id)}
        assert set(results) == {request["custom_id"] for request in requests}
        good = results["good"].result
        assert good.type == "succeeded" and good.message.usage.output_tokens == 3
        assert good.message.usage.service_tier == "batch"
        assert results["bad"].result.type == "errored"
        assert results[f"i{SLOW_ITEMS - 1}"].result.type == "canceled"
        assert sdk.messages.batches.delete(made.id).type == "message_batch_deleted"


def test_a_file_is_answered_as_a_file(pair: Platform) -> None:
    """OpenAI's SDK uploads requests, has them run, and downloads answers and errors."""
    asked = [("a", {"max_tokens": 3}), ("b", {"max_tokens": 5, "n": 2}), ("c", {"max_tokens": -1})]
    lines = [
        {
            "custom_id": custom_id,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": MODEL,
                "messages": [{"role": "user", "content": "Hello."}],
                "ignore_eos": True,
                **more,
            },
        }
        for custom_id, more in asked
    ]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    with openai.OpenAI(base_url=f"{pair.url}/v1", api_key=pair.key) as sdk:
        file = sdk.files.create(file=("in.jsonl", data), purpose="batch")
        assert sdk.files.content(file.id).content == data
        made = sdk.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        eventually(lambda: sdk.batches.retrieve(made.id).status == "completed", 20.0, "it ends")
        done = sdk.batches.retrieve(made.id)
        assert done.output_file_id is not None and done.error_file_id is not None
        texts = [sdk.files.content(name).text for name in (done.output_file_id, done.error_file_id)]
    output, errors = ([json.loads(line) for line in text.splitlines()] for text in texts)
    bodies = {one["custom_id"]: one["response"]["body"] for one in output}
    assert bodies["a"]["usage"]["completion_tokens"] == 3
    assert len(bodies["b"]["choices"]) == 2
    assert [one["custom_id"] for one in errors] == ["c"]


def test_a_batch_whose_gateway_is_killed_bills_each_item_once(pair: Platform) -> None:
    """Results come for all items, each is generated once, and the audit agrees."""
    with anthropic.Anthropic(base_url=pair.url, api_key=pair.key) as sdk:
        requests = [item("bad", max_tokens=-1), *(item(f"i{n}") for n in range(SLOW_ITEMS))]
        made = sdk.messages.batches.create(requests=requests)
        eventually(lambda: pair.engine_load() > 0, 10.0, "items run")
        name = runner(made.id)
        pid = pair.kill(name)

        batch = wait_ended(sdk, made.id)
        assert batch.request_counts.succeeded == SLOW_ITEMS
        assert batch.request_counts.errored == 1
        results = list(sdk.messages.batches.results(made.id))
        assert batch.results_url is not None and batch.results_url.startswith(pair.url)
    assert len({result.custom_id for result in results}) == len(results) == SLOW_ITEMS + 1
    ids = [
        str(find_request_id(result.result.message.id))
        for result in results
        if result.result.type == "succeeded"
    ]
    pair.wait_back(name, pid, 30.0)
    pair.check_audit()
    usage = pair.usage_of(ids)
    assert len(usage) == SLOW_ITEMS
    assert {tokens for _, tokens, _ in usage.values()} == {SLOW_TOKENS}
