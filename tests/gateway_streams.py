"""Streams of the gateway as a client sees them: events, cursors, cuts; shared by its HTTP tests."""

import json
import re

import httpx
import pytest

from tests.gateway_calls import body_of, headers_of
from tests.gateway_http import Served

TEXT = "Grüße, 世界!"
SSE = {"accept": "text/event-stream"}


def http(served: Served, gateway: int = 0) -> httpx.AsyncClient:
    """Return a client of one gateway."""
    return httpx.AsyncClient(base_url=served.urls[gateway], timeout=20, verify=False)


def events_of(raw: bytes) -> list[bytes]:
    """Return the events of a stream, without what only keeps it alive."""
    events = [event for event in raw.split(b"\n\n") if event.strip()]
    return [e for e in events if not e.startswith(b":") and not e.startswith(b"event: ping")]


def cursor_of(event: bytes) -> str:
    """Return the id of an event."""
    match = re.search(rb"^id: (\S+)$", event, re.MULTILINE)
    assert match, event
    return match[1].decode()


def reply_id_of(events: list[bytes]) -> str:
    """Return the reply id that the first event tells."""
    data = json.loads(events[0].split(b"data: ")[1])
    return str((data.get("message") or data.get("response") or data)["id"])


def headers(served: Served, path: str, **more: str) -> dict[str, str]:
    """Return a caller's headers; underscores in names become hyphens."""
    return headers_of(path, served.key) | {k.replace("_", "-"): v for k, v in more.items()}


async def read_some(
    client: httpx.AsyncClient, path: str, sent: dict[str, str], count: int
) -> bytes:
    """Start a stream, read `count` whole events, and drop the connection."""
    raw = b""
    async with client.stream("POST", path, json=body_of(path, stream=True), headers=sent) as reply:
        assert reply.status_code == 200
        async for piece in reply.aiter_raw():
            raw += piece
            if len(events_of(raw[: raw.rfind(b"\n\n") + 2])) >= count:
                break
    return raw[: raw.rfind(b"\n\n") + 2]


async def until_broken(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    sent: dict[str, str],
    body: dict[str, object] | None = None,
) -> list[bytes]:
    """Read a stream that must not end cleanly; return its events."""
    raw = b""
    with pytest.raises(httpx.RemoteProtocolError):
        async with client.stream(method, url, json=body, headers=sent) as response:
            async for piece in response.aiter_raw():
                raw += piece
    return events_of(raw)
