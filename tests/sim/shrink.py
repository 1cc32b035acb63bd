"""Making a failure small: fewer clients and fewer strikes, as long as the same invariant breaks.

Owns the search (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002).
Which runs fail is told by running them.
"""

from collections.abc import Callable
from dataclasses import replace

from tests.sim.options import Options
from tests.sim.world import Outcome

RUNS_MAX = 600
"""A smaller failure is not worth more runs than this."""

Run = Callable[[Options], Outcome]


def shrink(outcome: Outcome, run: Run, runs_max: int = RUNS_MAX) -> Outcome:
    """Return the smallest failure found that breaks the invariant of this one."""
    search = _Search(outcome, run, runs_max)
    clients = list(range(outcome.options.requests))
    search.try_all("only_clients", clients)
    before = None
    while before != search.smallest.options:
        before = search.smallest.options
        kept = search.smallest.options.only_strikes
        strikes = range(1, search.smallest.strikes + 1) if kept is None else sorted(kept)
        search.try_all("only_strikes", list(strikes))
        search.try_all("only_clients", sorted(before.only_clients or clients))
    return search.smallest


def invariant_of(outcome: Outcome) -> str | None:
    """Return the name of what a run violated."""
    return None if outcome.violation is None else outcome.violation.partition(":")[0]


class _Search:
    """The smallest failure so far, and what is left to spend on a smaller one."""

    def __init__(self, outcome: Outcome, run: Run, runs_max: int) -> None:
        self.smallest = outcome
        self._invariant = invariant_of(outcome)
        self._run = run
        self._runs_left = runs_max
        assert self._invariant is not None, "only a failure can be shrunk"

    def try_all(self, part: str, items: list[int]) -> None:
        """Drop as many items of one part of the options as the failure can do without."""
        pieces = 2
        while items:
            size = -(-len(items) // pieces)
            for first in range(0, len(items), size):
                rest = items[:first] + items[first + size :]
                if self._fails(part, rest):
                    items, pieces = rest, max(2, pieces - 1)
                    break
            else:
                if pieces >= len(items):
                    return
                pieces = min(len(items), 2 * pieces)

    def _fails(self, part: str, items: list[int]) -> bool:
        if self._runs_left <= 0:
            return False
        self._runs_left -= 1
        kept: dict[str, frozenset[int]] = {part: frozenset(items)}
        outcome = self._run(replace(self.smallest.options, **kept))  # type: ignore[arg-type]
        if invariant_of(outcome) != self._invariant:
            return False
        self.smallest = outcome
        return True
