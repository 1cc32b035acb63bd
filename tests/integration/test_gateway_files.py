"""OpenAI's files and batches over real HTTP: the official SDK against the memory log."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from openai.types import Batch

from schemas import limits
from tests.gateway_calls import MESSAGES, check_shape
from tests.gateway_http import MODEL, Served, serve
from tests.gateway_platform import until
from tests.integration.test_gateway_batches import Gate

CHAT = "/v1/chat/completions"


def line(custom_id: str, url: str = CHAT, **body: object) -> dict[str, object]:
    """Return one line of a batch's input."""
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 9, **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": asked}


def jsonl(*lines: object) -> bytes:
    """Return lines as a file."""
    return b"\n".join(json.dumps(one).encode() for one in lines) + b"\n"


def sdk_of(served: Served, gateway: int = 0, key: str | None = None) -> openai.AsyncOpenAI:
    """Return the official client."""
    url = f"{served.urls[gateway]}/v1"
    return openai.AsyncOpenAI(base_url=url, api_key=key or served.key, max_retries=0)


async def begun(sdk: openai.AsyncOpenAI, data: bytes) -> Batch:
    """Upload a file and make a batch of it."""
    file = await sdk.files.create(file=("in.jsonl", data), purpose="batch")
    return await sdk.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"run": "1"},
    )


async def over(sdk: openai.AsyncOpenAI, batch_id: str) -> Batch:
    """Return a batch once it is over."""
    async with asyncio.timeout(10):
        while True:
            batch = await sdk.batches.retrieve(batch_id)
            if batch.status in ("completed", "failed", "cancelled", "expired"):
                return batch
            assert batch.output_file_id is None and batch.error_file_id is None
            await asyncio.sleep(0.01)


async def lines_of(sdk: openai.AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    """Return a file's lines by their custom ids."""
    assert file_id is not None
    text = (await sdk.files.content(file_id)).text
    assert text.endswith("\n") and "\n\n" not in text
    assert len(text.encode()) == (await sdk.files.retrieve(file_id)).bytes
    lines = [json.loads(one) for one in text.splitlines()]
    return {one["custom_id"]: one for one in lines}


def test_a_batch_of_a_file_with_the_official_sdk() -> None:
    """Answers come as one file, errors as another; both are files until they are deleted."""

    async def scenario() -> None:
        async with serve(Gate().script, gateway_count=2) as served:
            one, other = sdk_of(served), sdk_of(served, 1)
            made = await begun(
                one,
                jsonl(
                    line("a", user="go"),
                    line("b", user="go"),
                    line("c", temperature=9),
                    line("d", stream=True),
                ),
            )
            assert made.status in ("validating", "in_progress") and made.metadata == {"run": "1"}
            done = await over(other, made.id)
            assert done.status == "completed" and done.completed_at and done.in_progress_at
            assert done.request_counts is not None
            counts = done.request_counts
            assert (counts.total, counts.completed, counts.failed) == (4, 2, 2)
            output = await lines_of(other, done.output_file_id)
            assert set(output) == {"a", "b"} and output["a"]["error"] is None
            body = output["a"]["response"]["body"]
            assert body["object"] == "chat.completion"
            assert body["choices"][0]["message"]["content"] == "ok"
            assert output["a"]["response"]["status_code"] == 200
            errors = await lines_of(one, done.error_file_id)
            assert set(errors) == {"c", "d"}
            assert errors["c"]["response"]["status_code"] == 400
            assert errors["c"]["response"]["body"]["error"]["param"] == "temperature"
            listed = [file.id async for file in one.files.list()]
            assert set(listed) == {made.input_file_id, done.output_file_id, done.error_file_id}
            batches = [batch.id async for batch in one.batches.list(limit=1)]
            assert batches == [made.id]
            stranger = sdk_of(served, key=served.make_key("other"))
            assert [file async for file in stranger.files.list()] == []
            for file_id in listed:
                with pytest.raises(openai.NotFoundError):
                    await stranger.files.content(file_id)
                assert (await other.files.delete(file_id)).deleted
                with pytest.raises(openai.NotFoundError):
                    await other.files.retrieve(file_id)
            with pytest.raises(openai.NotFoundError):
                await stranger.batches.retrieve(made.id)
            for sdk in (one, other, stranger):
                await sdk.close()

    asyncio.run(scenario())


def test_a_bad_file_is_the_batch_s_failure_and_a_cancelled_one_keeps_what_ran() -> None:
    """Faults are told by line, nothing of such a file runs; what was not begun is in the error
    file."""

    async def scenario() -> None:
        gate = Gate()
        async with serve(gate.script) as served:
            sdk = sdk_of(served)
            bad = await begun(sdk, jsonl(line("a"), line("a"), line("b", "/v1/responses"), 1))
            failed = await over(sdk, bad.id)
            assert failed.status == "failed" and failed.failed_at and failed.errors is not None
            faults = [(fault.line, fault.code) for fault in failed.errors.data or ()]
            assert faults == [
                (2, "duplicate_custom_id"),
                (3, "mismatched_endpoint"),
                (4, "invalid_json_line"),
            ]
            assert served.platform.worker.seen == []
            made = await begun(sdk, jsonl(*(line(f"i{n}") for n in range(18))))
            await until(lambda: len(served.platform.worker.seen) == 16)
            assert (await sdk.batches.cancel(made.id)).status == "cancelling"
            gate.opened.set()
            done = await over(sdk, made.id)
            assert done.status == "cancelled" and done.cancelled_at and done.cancelling_at
            errors = await lines_of(sdk, done.error_file_id)
            assert {one["error"]["code"] for one in errors.values()} == {"batch_cancelled"}
            assert len(errors) == 2 and len(await lines_of(sdk, done.output_file_id)) == 16
            await sdk.close()

    asyncio.run(scenario())


def test_a_large_file_comes_back_as_it_was_and_bad_forms_are_refused() -> None:
    """Bytes are kept whatever they are and however they are cut; a key stores a file once."""

    async def scenario() -> None:
        async with serve(Gate().script, gateway_count=2) as served:
            data = bytes(range(256)) * 13_000  # more than three pieces
            url, sent = f"{served.url}/v1/files", {"authorization": f"Bearer {served.key}"}
            key = {**sent, "idempotency-key": "k"}
            async with httpx.AsyncClient(verify=False) as client:
                form: Any = {"files": {"file": ("x", data)}, "data": {"purpose": "batch"}}
                made = await client.post(url, headers=key, **form)
                assert made.status_code == 200 and made.json()["bytes"] == len(data)
                again = await client.post(url, headers=key, **form)
                assert again.json() == made.json()
                assert again.headers["idempotent-replayed"] == "true"
                form["files"] = {"file": ("x", b"other")}
                assert (await client.post(url, headers=key, **form)).status_code == 422
                found = await client.get(
                    f"{served.urls[1]}/v1/files/{made.json()['id']}/content", headers=sent
                )
                assert found.content == data
                files: Any = {"file": ("x", b"{}")}
                bad: list[dict[str, Any]] = [
                    {"files": files},
                    {"files": files, "data": {"purpose": "vision"}},
                    {"data": {"purpose": "batch"}, "files": {"other": ("x", b"")}},
                    {"files": files, "data": {"purpose": "batch", "frobnicate": "1"}},
                    {"files": files, "data": {"purpose": "batch", "expires_after[seconds]": "9"}},
                    {"json": {"purpose": "batch"}},
                    {"content": b"--x\r\n", "headers": _typed("x")},
                ]
                for refused in bad:
                    headers = sent | refused.pop("headers", {})
                    answer = await client.post(url, headers=headers, **refused)
                    assert answer.status_code == 400, refused
                    check_shape("/v1/files", answer)
                assert await announced(served, 2 * limits.BATCH_FILE_BYTES_MAX) == 413
                foreign = {**sent, "anthropic-version": "2023-06-01"}
                assert (await client.get(url, headers=foreign)).status_code == 404

    asyncio.run(scenario())


async def announced(served: Served, size_bytes: int) -> int:
    """Return the status for a form of a size that is told and not sent."""
    host, _, port = served.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"content-type: {_typed('x')['content-type']}\r\ncontent-length: {size_bytes}\r\n"
    key = f"authorization: Bearer {served.key}\r\n"
    writer.write(f"POST /v1/files HTTP/1.1\r\nhost: x\r\n{key}{head}\r\n".encode())
    status = (await reader.readline()).split()[1]
    writer.close()
    return int(status)


def _typed(boundary: str) -> dict[str, str]:
    return {"content-type": f"multipart/form-data; boundary={boundary}"}
