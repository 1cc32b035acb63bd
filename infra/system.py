"""Real time and randomness: the one place that reads the machine's clock and entropy pool."""

import random
import secrets
import time
import uuid


class SystemClock:
    """The machine's clock. Implements `infra.ports.Clock`."""

    def now_ms(self) -> int:
        """Return Unix time in milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return seconds from an arbitrary origin."""
        return time.monotonic()


class SystemEntropy:
    """The operating system's entropy. Implements `infra.ports.Entropy`."""

    def uuid(self) -> str:
        """Return a fresh UUID version 4."""
        return str(uuid.uuid4())

    def bits(self, count: int) -> int:
        """Return a random integer of `count` bits."""
        return random.SystemRandom().getrandbits(count)

    def token(self, size: int) -> bytes:
        """Return bytes fit for secrets."""
        return secrets.token_bytes(size)
