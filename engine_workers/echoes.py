"""What this worker wrote and has not read back yet: its own records it need not decode.

Its tail reads all replies, most of which are its own where it is alone; the same bytes hold the
same facts. Owns a bounded memory of the newest ones; whatever is not in it is decoded as ever.
"""

from collections import OrderedDict

from schemas import limits
from schemas.replies import Closed, Delta, Start

__all__ = ["Echoes"]

Fact = Start | Delta | Closed


class Echoes:
    """Records by their bytes, until they are read back or newer ones need the room."""

    def __init__(self) -> None:
        self._facts: OrderedDict[bytes, tuple[Fact, ...]] = OrderedDict()
        self._bytes = 0

    def wrote(self, value: bytes, facts: tuple[Fact, ...]) -> None:
        """Remember what a record says. It may never land, or land twice."""
        if value not in self._facts:
            self._bytes += len(value)
        self._facts[value] = facts
        while self._bytes > limits.ECHO_BYTES_MAX or len(self._facts) > limits.ECHO_RECORDS_MAX:
            forgotten, _ = self._facts.popitem(last=False)
            self._bytes -= len(forgotten)

    def read(self, value: bytes) -> tuple[Fact, ...] | None:
        """Return what a record says that was written here, once; None of all others."""
        facts = self._facts.pop(value, None)
        if facts is not None:
            self._bytes -= len(value)
        return facts
