"""What one request asks of its org's limits, and what it may lack.

Plain data between `limiting.py`, `quota.py` and `lease.py`.
"""

from enum import StrEnum

from msgspec import Struct

from schemas.quota import KINDS, Kind

__all__ = ["LIMIT_NAMES", "Ask", "Lack", "LimitName"]

_NOTHING = (0,) * KINDS


class LimitName(StrEnum):
    """A limit as messages, metrics and log lines name it."""

    REQUESTS = "requests_per_minute"
    INPUT = "input_tokens_per_minute"
    OUTPUT = "output_tokens_per_minute"
    CONCURRENCY = "concurrency"
    MONTH = "tokens_per_month"


LIMIT_NAMES = (LimitName.REQUESTS, LimitName.REQUESTS, LimitName.INPUT, LimitName.OUTPUT)
"""By kind."""


class Ask(Struct, kw_only=True):
    """What one request needs at once."""

    amounts: tuple[int, ...] = _NOTHING
    """Spent, by kind."""
    some_output: bool = False
    """The bucket of output tokens must not be empty; what is produced is charged later."""
    slot: bool = False
    """Counts as in flight until it is let go."""
    spends: tuple[tuple[int, int], ...] = ()
    """Kinds and amounts, those alone that are not 0."""
    needs: tuple[tuple[int, int], ...] = ()
    """What must be there: that, and some output."""

    def __post_init__(self) -> None:
        self.spends = tuple([pair for pair in enumerate(self.amounts) if pair[1]])
        output = ((int(Kind.OUTPUT), 1),) if self.some_output else ()
        self.needs = (*self.spends, *output)


class Lack(Struct, frozen=True, kw_only=True):
    """Why a request cannot pass now."""

    limit: LimitName
    value: int
    retry_s: float | None
    """When the same request would pass if nobody else spent; None = never under this limit."""
