"""Strikes of one run by number: all of them, or those that a shrunk run still has.

Owns the count. A strike is anything that chance let happen to a send, poll, commit, insert, engine
or process; which one it is depends on the seed and on the strikes before it.
"""


class Strikes:
    """Counts what chance wants to happen, and lets it happen or not."""

    def __init__(self, only: frozenset[int] | None) -> None:
        self._only = only
        self.count = 0
        """Strikes so far, those that were not let happen too."""

    def allows(self) -> bool:
        """Tell whether the next strike may happen."""
        self.count += 1
        return self._only is None or self.count in self._only
