"""When a gateway looks through all that it holds for garbage in circles: not amid many streams.

The interpreter would do so whenever its objects have grown by a quarter, and stands still: for
0.9 s with 10,000 streams open. Requests and connections leave no circles behind (a test counts
them), so that hardly anything waits for it. Young objects are looked through as ever. Owns the
moments of full collections; run by `assembly.py`.
"""

import asyncio
import gc
from collections.abc import Callable

__all__ = ["GarbageTurns", "collect_young_only"]

_TURN_S = 60.0
_FEW_OPEN = 64
_PUT_OFF_MAX = 10
"""Turns that many open streams put off; then it is done all the same."""
_NEVER = 1 << 30


def collect_young_only(young_objects: int) -> None:
    """Let the interpreter collect none but the two younger generations by itself."""
    gc.set_threshold(young_objects, gc.get_threshold()[1], _NEVER)


class GarbageTurns:
    """Takes a turn a minute."""

    def __init__(
        self, open_count: Callable[[], int], collect: Callable[[], object] = gc.collect
    ) -> None:
        """Take what tells how many replies have clients now, and what collects."""
        self._open_count = open_count
        self._collect = collect
        self._put_off = 0

    async def run(self) -> None:
        """Take turns for ever."""
        while True:
            await asyncio.sleep(_TURN_S)
            self.run_once()

    def run_once(self) -> None:
        """Collect where few would notice, or it has been put off for long."""
        if self._open_count() > _FEW_OPEN and self._put_off < _PUT_OFF_MAX:
            self._put_off += 1
            return
        self._put_off = 0
        self._collect()
