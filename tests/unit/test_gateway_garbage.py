"""When a gateway collects its garbage, and that its requests leave none that needs it."""

import asyncio
import gc
from collections.abc import Iterator

import httpx
import pytest

from gateway.garbage import GarbageTurns
from gateway.server import _Protocol
from schemas.requests import RequestAccepted
from tests.gateway_calls import headers_of
from tests.gateway_http import serve
from tests.gateway_platform import FakeWorker

PATH = "/v1/chat/completions"


def test_many_open_streams_put_a_collection_off_but_not_for_ever() -> None:
    """It is done at once where few are open, and in the end all the same."""
    opened, collected = [0], list[int]()
    turns = GarbageTurns(lambda: opened[0], lambda: collected.append(opened[0]))
    turns.run_once()
    assert collected == [0]
    opened[0] = 1_000
    for _ in range(10):
        turns.run_once()
    assert collected == [0]
    turns.run_once()
    turns.run_once()
    assert collected == [0, 1_000]


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Leave what stands in circles where it is."""
    gc.collect()
    gc.freeze()  # what other tests left is not looked through again and again
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def connections() -> int:
    """Return how many connections' protocols are in memory."""
    return sum(isinstance(item, _Protocol) for item in gc.get_objects())


async def _speak(worker: FakeWorker, request: RequestAccepted) -> None:
    await worker.start(request)
    await worker.say(request, 72)


def test_connections_are_freed_without_the_collector(no_collector: None) -> None:
    """Streams whose clients left, and all that belongs to them, stand in no circle."""

    async def scenario() -> None:
        async with serve(_speak) as served:
            body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
            async with httpx.AsyncClient(base_url=served.url, verify=False) as http:
                for _ in range(3):
                    headers = headers_of(PATH, served.key)
                    async with http.stream("POST", PATH, json=body, headers=headers) as answer:
                        async for _piece in answer.aiter_raw():
                            break
            async with asyncio.timeout(5):
                while connections():  # noqa: ASYNC110 # they have no event of their own
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())
