"""Bounds on work that hardly ever waits: an alarm is set only where it does.

Called by the writer, which queues thousands of records a second and waits for room in few of them.
"""

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar, cast

Outcome = TypeVar("Outcome")


async def within(deadline: float, work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Return what the work returns; it runs in the caller's own task.

    Args: `deadline` is a moment of the event loop's clock.

    Raises: TimeoutError where it still waits then; it is cancelled before.
    """
    try:
        waits_for = work.send(None)
    except StopIteration as done:
        return cast(Outcome, done.value)
    async with asyncio.timeout_at(deadline):
        return cast(Outcome, await _resumed(work, waits_for))


@types.coroutine
def _resumed(work: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Go on with work that has begun and waits for something."""
    while True:
        thrown: BaseException | None = None
        try:
            yield waits_for
        except BaseException as error:  # a cancellation, say: the work itself has to meet it
            thrown = error
        try:
            waits_for = work.send(None) if thrown is None else work.throw(thrown)
        except StopIteration as done:
            return done.value
