"""A server that leaves: no new connections, and one more answer on each of those there are."""

import asyncio
import time

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from gateway.server import HttpServer, listen

LINGER_S = 5.0


class Gate:
    """An application that answers at once, or when it is opened."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with two bytes."""
        if scope["path"] == "/slow":
            self.waiting.set()
            await self.opened.wait()
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-length", b"2")],
            }
        )
        await send({"type": "http.response.body", "body": b"ok"})


def test_leaving_answers_what_is_on_its_way_and_takes_nothing_new() -> None:
    """A request in progress and one on a kept connection are answered with `connection: close`, a
    new connection is refused, and leaving ends with the last of them."""

    async def scenario() -> None:
        gate, listener = Gate(), listen("127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = HttpServer(gate, [listener])
        await server.start()
        async with (
            httpx.AsyncClient(base_url=url, trust_env=False) as kept,
            httpx.AsyncClient(base_url=url, trust_env=False) as slow,
            httpx.AsyncClient(base_url=url, trust_env=False) as late,
        ):
            first = await kept.get("/")
            assert "connection" not in first.headers
            running = asyncio.create_task(slow.get("/slow"))
            await gate.waiting.wait()
            began_s = time.monotonic()
            leaving = asyncio.create_task(server.leave(LINGER_S))
            await asyncio.sleep(0.05)
            with pytest.raises(httpx.ConnectError):
                await late.get("/")
            again = await kept.get("/")
            assert (again.text, again.headers["connection"]) == ("ok", "close")
            gate.opened.set()
            last = await running
            assert (last.text, last.headers["connection"]) == ("ok", "close")
            await leaving
            assert time.monotonic() - began_s < LINGER_S
        await server.stop()

    asyncio.run(scenario())


def test_leaving_does_not_wait_for_an_idle_client() -> None:
    """A connection on which nothing is asked is closed at the end of the linger."""

    async def scenario() -> None:
        listener = listen("127.0.0.1", 0)
        server = HttpServer(Gate(), [listener])
        await server.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, trust_env=False) as idle:
            await idle.get("/")
            began_s = time.monotonic()
            await server.leave(0.2)
            assert 0.2 <= time.monotonic() - began_s < LINGER_S
            await server.stop()
            with pytest.raises(httpx.ConnectError):
                await idle.get("/")

    asyncio.run(scenario())
