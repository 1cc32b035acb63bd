"""How every client of the log comes up and goes away: with patience, back-off and bounds.

A broker may be down when a process starts, and whenever it pleases afterwards; that is a state to
wait in, never a reason to crash. Called by the adapters beside it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import structlog
from aiokafka.errors import KafkaError

from schemas import limits

Client = TypeVar("Client")

REQUEST_TIMEOUT_MS = limits.SEND_TIMEOUT_MS
CONNECT_TIMEOUT_S = limits.SEND_TIMEOUT_MS / 1_000
CLOSE_TIMEOUT_S = 3.0
RETRY_BACKOFF_MS = 100
BACKOFF_FIRST_S = 0.1
BACKOFF_LAST_S = 1.0

# What aiokafka raises while a broker is away; the assertions are its own about a cluster that it
# cannot see yet.
UNREACHABLE = (KafkaError, OSError, TimeoutError, AssertionError)


async def until_connected(
    make: Callable[[], Client],
    start: Callable[[Client], Awaitable[None]],
    stop: Callable[[Client], Awaitable[None]],
    *,
    bootstrap: str,
) -> Client:
    """Return a started client, trying with growing pauses until one starts.

    Logs once when it has to wait and once when the wait is over.
    """
    pause_s = BACKOFF_FIRST_S
    waiting = False
    while True:
        client = make()  # a fresh one each time: aiokafka's clients cannot be started twice
        started = False
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await start(client)
            started = True
        except UNREACHABLE as error:
            if not waiting:
                waiting = True
                _log().warning("kafka_unreachable", bootstrap=bootstrap, error=str(error))
        finally:
            if not started:
                await bounded(stop(client))
        if started:
            if waiting:
                _log().info("kafka_reached", bootstrap=bootstrap)
            return client
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, BACKOFF_LAST_S)


async def bounded(closing: Awaitable[object], timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
    """Wait for `closing` within a bound, swallowing its failure; return whether it ended."""
    task = asyncio.ensure_future(closing)
    done, _ = await asyncio.wait([task], timeout=timeout_s)
    if not done:
        task.cancel()
        await asyncio.wait([task], timeout=timeout_s)
        return False
    if not task.cancelled():
        task.exception()  # taken, so that nobody logs it: a closing client has nothing to say
    return True


def _log() -> Any:
    return structlog.get_logger("infra.kafka")
