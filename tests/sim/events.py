"""What happened in a run, in order: kept as a short list for people, and as a hash for replays."""

import hashlib
from collections import Counter, deque


class Events:
    """The event list of one run."""

    def __init__(self, keep: int = 4_000) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._unhashed: list[str] = []
        self._kept: deque[str] = deque(maxlen=keep)
        self.count = 0
        self.fired: Counter[str] = Counter()
        """Faults that the simulator itself carried out, by kind."""

    def note(self, now_s: float, text: str) -> None:
        """Add one event."""
        line = f"{now_s:9.4f} {text}"
        self._unhashed.append(line)
        self._kept.append(line)
        self.count += 1

    def fault(self, now_s: float, kind: str, text: str = "") -> None:
        """Add a fault and count it."""
        self.fired[kind] += 1
        self.note(now_s, f"FAULT {kind} {text}")

    def digest(self) -> str:
        """Return the hash over all events so far."""
        self._hash.update("".join(self._unhashed).encode())
        self._unhashed.clear()
        return self._hash.hexdigest()

    def tail(self, about: str | None, count: int = 60) -> list[str]:
        """Return the newest events; with `about`, only faults and those that name it."""
        lines = [line for line in self._kept if about is None or about in line or "FAULT" in line]
        return lines[-count:]
