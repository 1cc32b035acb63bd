"""Order statistics, ratios of interleaved rounds, and slopes. Pure.

Machine noise hits neighbouring measurements alike, so ratios are taken within a round and their
median over the rounds is reported with its spread.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Paired", "median", "paired", "percentile", "slope_per_minute"]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile; nan where there are no values.

    Args: `share` lies in 0..1.
    """
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def median(values: Sequence[float]) -> float:
    """Return the middle value, or the mean of the middle two; nan where there are none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Median of per-round values with the lowest and highest of them."""

    middle: float
    low: float
    high: float
    rounds: int

    @property
    def note(self) -> str:
        """Return the spread in words."""
        return f"{self.low:.3g} to {self.high:.3g} over {self.rounds} rounds"


def paired(values: Sequence[float]) -> Paired:
    """Return median and spread of per-round ratios or differences."""
    return Paired(
        middle=median(values),
        low=min(values, default=math.nan),
        high=max(values, default=math.nan),
        rounds=len(values),
    )


def slope_per_minute(points: Sequence[tuple[float, float]]) -> float:
    """Return the least-squares slope of (seconds, value) points per minute; 0 for fewer than 2."""
    if len(points) < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread == 0:
        return 0.0
    return 60 * sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
