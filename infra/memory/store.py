"""The usage store in memory: the same collapse as ClickHouse's ReplacingMergeTree, with faults to
order.

Owns rows and how they collapse when read; holds no rollups, since nothing reads them through the
port. Used by the simulator and by tests.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from infra.errors import StoreUnavailable
from infra.ports import UsageRow

_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertFault:
    """What happens to one insert. With `fails`, `stored` tells the outcome that the caller cannot
    know."""

    delay_s: float = 0.0
    stored: bool = True
    fails: bool = False


_NO_FAULT = InsertFault()


class MemoryUsageStore:
    """Implements `infra.ports.UsageStore`.

    Args:
        fault: asked once an insert; draws what happens to it.
        sleep: waits a fault's delay; on the simulator's loop that is virtual time.
        collapse: False plants the bug of a table that keeps every copy.
    """

    def __init__(
        self,
        *,
        fault: Callable[[], InsertFault] = lambda: _NO_FAULT,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        collapse: bool = True,
    ) -> None:
        self._fault = fault
        self._sleep = sleep
        self._collapse = collapse
        self._rows: list[UsageRow] = []
        self.refreshed: set[tuple[str, int]] = set()
        """(org, hour in Unix milliseconds) of every rollup recomputed so far."""

    async def insert(self, rows: Sequence[UsageRow]) -> None:
        """Store these rows, or fail as the fault says."""
        fault = self._fault()
        if fault.delay_s:
            await self._sleep(fault.delay_s)
        if fault.stored:
            self._rows.extend(rows)
        if fault.fails:
            raise StoreUnavailable("insert: outcome unknown (fault)")

    async def refresh(self, rows: Sequence[UsageRow]) -> None:
        """Note which rollups would be recomputed."""
        self.refreshed.update((row.usage.org, _hour_ms(row)) for row in rows)

    async def rows(self, request_id: str | None = None) -> Sequence[UsageRow]:
        """Return rows collapsed by sort key, ordered by it; the highest offset wins, then the
        newest."""
        chosen = [
            row for row in self._rows if request_id is None or row.usage.request_id == request_id
        ]
        if not self._collapse:
            return chosen
        kept: dict[tuple[str, int, str], UsageRow] = {}
        for row in chosen:
            key = (row.usage.org, _hour_ms(row), row.usage.request_id)
            if key not in kept or kept[key].offset <= row.offset:
                kept[key] = row
        return [kept[key] for key in sorted(kept)]

    async def physical_count(self) -> int:
        """Return how many rows are held before collapsing."""
        return len(self._rows)

    async def disputed(self) -> Sequence[str]:
        """Return ids of which two held rows differ in their usage."""
        first: dict[str, UsageRow] = {}
        found = {
            row.usage.request_id
            for row in self._rows
            if first.setdefault(row.usage.request_id, row).usage != row.usage
        }
        return sorted(found)

    async def close(self) -> None:
        """Nothing to release."""

    def delete(self, request_id: str) -> None:
        """Remove all rows of a request, as an operator's hand would."""
        self._rows = [row for row in self._rows if row.usage.request_id != request_id]

    def change(self, request_id: str, **columns: object) -> None:
        """Change columns of a request's rows in place, as an operator's hand would."""
        self._rows = [
            replace(row, usage=replace(row.usage, **columns))
            if row.usage.request_id == request_id
            else row
            for row in self._rows
        ]


def _hour_ms(row: UsageRow) -> int:
    return row.usage.accepted_at_ms // _HOUR_MS * _HOUR_MS
