"""Time and randomness of each simulated process."""

import random
import uuid

from tests.sim.loop import SimLoop

EPOCH_MS = 1_700_000_000_000


class SimClock:
    """The loop's time, wrong by what the seed says. Implements `infra.ports.Clock`."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.skew_ms = 0

    def now_ms(self) -> int:
        """Return Unix time in milliseconds."""
        return EPOCH_MS + int(self._loop.time() * 1_000) + self.skew_ms

    def monotonic_s(self) -> float:
        """Return seconds since the run began; never skewed."""
        return self._loop.time()


class SimEntropy:
    """A stream of its own for each process. Implements `infra.ports.Entropy`."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def uuid(self) -> str:
        """Return a version 4 UUID."""
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def bits(self, count: int) -> int:
        """Return an integer of `count` bits."""
        return self._random.getrandbits(count)

    def token(self, size: int) -> bytes:
        """Return bytes."""
        return self._random.randbytes(size)
