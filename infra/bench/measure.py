"""One measured figure with its bound, and what a bench prints of them.

Owns the form of `millstream bench NAME --json` (ARCHITECTURE.md). Pure.
"""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Measure", "failed", "measure", "report", "table"]

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
}
_BOUND = re.compile(r"(<=|>=|==) (-?[0-9.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A figure; `bound` and `holds` are None where it is only for information."""

    name: str
    value: float
    unit: str
    bound: str | None = None
    holds: bool | None = None
    note: str | None = None
    """Spread, number of rounds, or what else a reader needs to judge the figure."""


def measure(
    name: str, value: float, unit: str, bound: str | None = None, note: str | None = None
) -> Measure:
    """Return a measure judged by its bound, such as `>= 1.05`. Raises ValueError for bad bounds."""
    holds = None
    if bound is not None:
        match = _BOUND.fullmatch(bound)
        if match is None:
            raise ValueError(f"{bound!r} is no bound; expected such as '<= 0.18'")
        # Judged as shown: a reader must not meet 0.18 <= 0.18 that does not hold.
        holds = _COMPARISONS[match[1]](_rounded(value), float(match[2]))
    return Measure(name=name, value=_rounded(value), unit=unit, bound=bound, holds=holds, note=note)


def failed(measures: Sequence[Measure]) -> list[Measure]:
    """Return those whose bound does not hold."""
    return [item for item in measures if item.holds is False]


def report(bench: str, measures: Sequence[Measure]) -> dict[str, Any]:
    """Return what `--json` prints."""
    return {
        "bench": bench,
        "measures": [
            {name: value for name, value in asdict(item).items() if name != "note" or value}
            for item in measures
        ],
    }


def table(measures: Sequence[Measure]) -> str:
    """Return the measures as aligned lines, those that do not hold marked."""
    rows = [
        (
            item.name,
            f"{item.value:,.6g}",
            item.unit,
            item.bound or "",
            {None: "", True: "holds", False: "DOES NOT HOLD"}[item.holds],
            item.note or "",
        )
        for item in measures
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(5)]
    lines = []
    for row in rows:
        cells = [f"{row[0]:<{widths[0]}}", f"{row[1]:>{widths[1]}}"]
        cells += [f"{row[column]:<{widths[column]}}" for column in (2, 3, 4)]
        lines.append("  ".join([*cells, row[5]]).rstrip())
    return "\n".join(lines)


def _rounded(value: float) -> float:
    """Return four significant digits: more is noise."""
    return float(f"{value:.4g}")
