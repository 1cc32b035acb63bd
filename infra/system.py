"""Real time and randomness: the one place that reads the machine's clock and entropy pool."""

import os
import secrets
import time


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
        raw = bytearray(os.urandom(16))
        raw[6] = raw[6] & 0x0F | 0x40  # version 4
        raw[8] = raw[8] & 0x3F | 0x80  # RFC 9562's variant
        text = raw.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def bits(self, count: int) -> int:
        """Return a random integer of `count` bits."""
        size = (count + 7) // 8
        return int.from_bytes(os.urandom(size)) >> (8 * size - count)

    def token(self, size: int) -> bytes:
        """Return bytes fit for secrets."""
        return secrets.token_bytes(size)
