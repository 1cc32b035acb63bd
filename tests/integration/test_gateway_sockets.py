"""Servers that come and go behind a shared socket: who takes a connection, and who answers it."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from gateway.server import HttpServer, listen
from infra.supervisor.sockets import free_port
from infra.system import SystemEntropy
from schemas import limits
from tests.integration.platform import eventually

LINGER_S = 5.0
STARTED_WITHIN_S = 30.0


class Gate:
    """An application that answers at once, or ends its answer when it is opened."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with two bytes."""
        if scope["path"] == "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"o", "more_body": True})
            self.waiting.set()
            await self.opened.wait()
            await send({"type": "http.response.body", "body": b"k"})
            return
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


def test_leaving_keeps_a_connection_whose_stream_ends() -> None:
    """Its client was told that the connection is kept: the next request on it is answered, and
    that answer says that it is the last."""

    async def scenario() -> None:
        gate, listener = Gate(), listen("127.0.0.1", 0)
        server = HttpServer(gate, [listener])
        await server.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            stream = asyncio.create_task(client.get("/stream"))
            await gate.waiting.wait()
            leaving = asyncio.create_task(server.leave(LINGER_S))
            await asyncio.sleep(0.05)
            gate.opened.set()
            first = await stream
            assert (first.text, "connection" in first.headers) == ("ok", False)
            again = await client.get("/")
            assert (again.text, again.headers["connection"]) == ("ok", "close")
            await leaving
        await server.stop()

    asyncio.run(scenario())


def test_leaving_does_not_cut_a_request_that_is_being_sent() -> None:
    """Half a head at the end of the linger is no idle connection."""

    async def scenario() -> bytes:
        listener = listen("127.0.0.1", 0)
        server = HttpServer(Gate(), [listener])
        await server.start()
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"GET / HTTP/1.1\r\nhost: t")
        await asyncio.sleep(0.1)
        await server.leave(0.1)
        writer.write(b"est\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await server.stop()
        return answer

    answer = asyncio.run(scenario())
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"ok")
    assert b"\r\nconnection: close\r\n" in answer


def test_a_client_of_http_1_0_gets_no_chunks() -> None:
    """A stream's body is sent as it is and ends with the connection (RFC 9112, section 6.1)."""
    answer = asyncio.run(_answer_to(b"GET /stream HTTP/1.0\r\n\r\n"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert body == b"ok"
    assert b"connection: close" in head and b"transfer-encoding" not in head


def test_a_head_that_is_too_large_is_told_so() -> None:
    """431 (RFC 6585), then the connection ends."""
    head = b"GET / HTTP/1.1\r\nx: " + b"y" * limits.HTTP_HEAD_BYTES_MAX
    answer = asyncio.run(_answer_to(head))
    assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")


@pytest.mark.parametrize("gateways", [1, 2])
def test_a_gateway_that_cannot_serve_leaves_connections_to_another(
    tmp_path: Path, gateways: int
) -> None:
    """Without a log a gateway refuses at once where it is alone. Where others share its socket it
    takes no connection, and whoever can serve answers what came before."""
    own_port = free_port(SystemEntropy())
    with listen("127.0.0.1", 0) as public:
        url = f"http://127.0.0.1:{public.getsockname()[1]}"
        body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}

        async def scenario() -> httpx.Response:
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=10) as client:
                asked = asyncio.create_task(client.post("/v1/messages", json=body))
                if gateways == 1:
                    return await asked
                done, _ = await asyncio.wait([asked], timeout=1.5)
                assert not done
                other = HttpServer(Gate(), [public.dup()])
                await other.start()
                answer = await asked
            await other.stop()
            return answer

        with _gateway_without_a_log(tmp_path, public.fileno(), own_port, gateways):
            answer = asyncio.run(scenario())
    assert answer.status_code == (529 if gateways == 1 else 200), answer.text


async def _answer_to(sent: bytes) -> bytes:
    """Send bytes to an opened gate; return all that comes until the connection ends."""
    gate, listener = Gate(), listen("127.0.0.1", 0)
    gate.opened.set()
    server = HttpServer(gate, [listener])
    await server.start()
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(sent)
    answer = await reader.read()
    writer.close()
    await server.stop()
    return answer


@contextmanager
def _gateway_without_a_log(
    folder: Path, listen_fd: int, own_port: int, gateways: int
) -> Iterator[None]:
    """Run a gateway that never becomes ready, since nothing listens where its broker should be."""
    nobody = free_port(SystemEntropy())
    settings = {
        "DATA_DIR": folder,
        "PROCESS": "gateway-0",
        "KAFKA": f"127.0.0.1:{nobody}",
        "LISTEN_FD": listen_fd,
        "PORT": own_port,
        "GATEWAYS": gateways,
        "LOCATOR_KEY": "00" * 32,
    }
    gateway = subprocess.Popen(
        [sys.executable, "-m", "gateway"],
        env={**os.environ, **{f"MILLSTREAM_{key}": str(value) for key, value in settings.items()}},
        pass_fds=(listen_fd,),
    )
    try:
        eventually(lambda: _answers(own_port), STARTED_WITHIN_S, "it serves on its own port")
        yield
    finally:
        gateway.kill()
        gateway.wait()


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ready", trust_env=False).status_code == 503
    except httpx.ConnectError:
        return False
