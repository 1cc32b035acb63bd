"""Calls, scripts and checks that the gateway's HTTP tests share."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from schemas.replies import CloseReason, StopReason
from schemas.requests import RequestAccepted
from tests.gateway_http import MODEL, Served, ids_of
from tests.gateway_platform import FakeWorker, Script

MESSAGES: Any = [{"role": "user", "content": "hi"}]
ANTHROPIC = "/v1/messages"
OPENAI = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
PATHS = (ANTHROPIC, OPENAI)


def body_of(path: str, **fields: object) -> dict[str, object]:
    """Return a small good body for a path."""
    body: dict[str, object] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 50}
    if path == COMPLETIONS:
        body = {"model": MODEL, "prompt": "hi", "max_tokens": 50}
    elif path == RESPONSES:
        body = {"model": MODEL, "input": "hi", "max_output_tokens": 50}
    return {**body, **fields}


def headers_of(path: str, key: str | None, **more: str) -> dict[str, str]:
    """Return the headers of a good call."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    if path.startswith(ANTHROPIC):
        headers["anthropic-version"] = "2023-06-01"
    return headers | more


def say(text: str, *, pause_s: float = 0.0, stop: StopReason = StopReason.END) -> Script:
    """Return a script that says a text, one byte per record."""

    async def script(worker: FakeWorker, request: RequestAccepted) -> None:
        await worker.start(request)
        for token in ids_of(text):
            await worker.say(request, token)
            await asyncio.sleep(pause_s)
        await worker.say(request, stop=stop)

    return script


async def say_then_fail(worker: FakeWorker, request: RequestAccepted) -> None:
    """Say two tokens, then be closed as failed."""
    await worker.start(request)
    await worker.say(request, *ids_of("ab"))
    await asyncio.sleep(0.1)
    await worker.close(request, CloseReason.FAILED)


async def say_then_hang(worker: FakeWorker, request: RequestAccepted) -> None:
    """Say two tokens, then nothing more."""
    await worker.start(request)
    await worker.say(request, *ids_of("ab"))


async def fail(worker: FakeWorker, request: RequestAccepted) -> None:
    """Be closed as failed before any token."""
    await worker.close(request, CloseReason.FAILED)


@asynccontextmanager
async def client(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    """Open a plain HTTP client on a gateway."""
    # Without TLS: reading the machine's certificates takes longer than a call.
    async with httpx.AsyncClient(base_url=served.url, timeout=20, verify=False) as opened:
        yield opened


def check_shape(path: str, response: httpx.Response) -> str:
    """Check the dialect's error shape and the ids of any response; return the message."""
    assert response.headers["request-id"] == response.headers["x-request-id"]
    assert response.headers["request-id"].startswith("req_")
    body = response.json()
    if path.startswith(ANTHROPIC):
        assert body["type"] == "error" and body["error"]["type"]
        assert body["request_id"] == response.headers["request-id"]
    else:
        assert set(body["error"]) == {"message", "type", "param", "code"}
    message = body["error"]["message"]
    assert isinstance(message, str) and message
    return message
