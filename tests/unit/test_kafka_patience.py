"""Work within a bound: at once where it never waits, cut where it waits too long."""

import asyncio

import pytest

from infra.kafka.patience import within


def test_work_that_does_not_wait_sets_no_alarm() -> None:
    """It is done although its bound has passed already: nobody looked at the time."""

    async def work() -> int:
        return 7

    async def run() -> int:
        return await within(0.0, work())

    assert asyncio.run(run()) == 7


def test_work_that_waits_is_resumed() -> None:
    """Each of its waits ends as in a task of its own, errors of what it waits for included."""

    async def work() -> list[str]:
        met = []
        for seconds in (0.0, 0.001):
            await asyncio.sleep(seconds)
            met.append("slept")
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(failed.set_exception, ValueError("no"))
        try:
            await failed
        except ValueError as error:
            met.append(str(error))
        return met

    async def run() -> list[str]:
        return await within(asyncio.get_running_loop().time() + 60, work())

    assert asyncio.run(run()) == ["slept", "slept", "no"]


def test_work_that_waits_too_long_is_cancelled() -> None:
    """At the deadline the work meets a cancellation, and its caller a TimeoutError."""
    met: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            met.append("left")

    async def run() -> None:
        with pytest.raises(TimeoutError):
            await within(asyncio.get_running_loop().time() + 0.01, work())

    asyncio.run(run())
    assert met == ["left"]


def test_a_cancelled_caller_cancels_the_work() -> None:
    """Cancelling the caller's task reaches the work where it waits."""
    met: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            met.append("cancelled")
            raise

    async def run() -> None:
        task = asyncio.create_task(within(asyncio.get_running_loop().time() + 60, work()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert met == ["cancelled"]
