"""Virtual time for contract tests: waits cost nothing, and time-outs are exact."""

import asyncio
from collections.abc import Coroutine


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop that jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual_s = 0.0

    def time(self) -> float:
        """Return the virtual time."""
        return self._virtual_s

    def jump(self, seconds: float) -> None:
        """Let time pass at once: timers on the way fire late, and once."""
        self._virtual_s += seconds

    def _run_once(self) -> None:
        # The base class keeps these two: callbacks ready to run, and a heap of timers.
        timers = [timer.when() for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        if timers and not self._ready:  # type: ignore[attr-defined]
            self._virtual_s = max(self._virtual_s, min(timers))
        super()._run_once()  # type: ignore[misc]


class LoopClock:
    """The running loop's time, some years after 1970. Implements `infra.ports.Clock`."""

    def now_ms(self) -> int:
        """Return the loop's time as Unix time."""
        return 1_700_000_000_000 + int(self.monotonic_s() * 1000)

    def monotonic_s(self) -> float:
        """Return the loop's time."""
        return asyncio.get_running_loop().time()


def run_virtually(main: Coroutine[None, None, None]) -> None:
    """Run a coroutine to its end on a fresh virtual loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main)
