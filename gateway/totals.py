"""Usage totals per org, as the stream-app publishes them on `usage-totals.v1`.

Owns a view of the newest record of each org and partition, and the tail that keeps it. Shown at
GET /admin/v1/usage-totals, and what quotas of tokens per month are judged on; no bill is made
from it.
"""

import asyncio

from infra.errors import LogError
from infra.ports import LogReader, TopicPartition
from schemas import limits
from schemas.codec import Undecodable, decode
from schemas.topics import USAGE_TOTALS
from schemas.usage import UsageTotals

__all__ = ["TotalsTail", "TotalsView"]

_PARTITIONS = tuple(
    TopicPartition(USAGE_TOTALS, partition) for partition in range(limits.USAGE_PARTITIONS)
)


class TotalsView:
    """Newest totals by org and partition; mutated by `apply` only."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, int], UsageTotals] = {}

    def apply(self, totals: UsageTotals) -> None:
        """Take the next record in log order; it replaces the org's earlier one of its partition."""
        self._newest[totals.org, totals.partition] = totals

    def month_tokens(self, org: str, month: int) -> int:
        """Return what an org has used in a month, input and output, as far as it was counted."""
        used = 0
        for partition in range(limits.USAGE_PARTITIONS):
            totals = self._newest.get((org, partition))
            if totals is not None and totals.month == month:
                used += totals.month_input_tokens + totals.month_output_tokens
        return used

    def rows(self) -> list[dict[str, object]]:
        """Return one row per org, summed over partitions, by org name."""
        sums: dict[str, list[int]] = {}
        for (org, _), totals in self._newest.items():
            row = sums.setdefault(org, [0] * len(_FIELDS))
            for index, name in enumerate(_FIELDS):
                row[index] += getattr(totals, name)
        return [{"org": org, **dict(zip(_FIELDS, sums[org], strict=True))} for org in sorted(sums)]


_FIELDS = ("requests", "input_tokens", "cached_tokens", "output_tokens", "cost_nano")


class TotalsTail:
    """Keeps a TotalsView current from a reader of its own."""

    def __init__(self, reader: LogReader, view: TotalsView) -> None:
        self._reader = reader
        self._view = view
        self._assigned = False

    async def run(self) -> None:
        """Read for ever; an unreachable log is waited for, then all is read again."""
        while True:
            try:
                await self.run_once()
            except LogError:
                self._assigned = False
                await asyncio.sleep(limits.STATUS_EVERY_MS / 1000)

    async def run_once(self) -> None:
        """Take what has come since the last turn. Raises LogError."""
        if not self._assigned:
            bounds = await self._reader.bounds(_PARTITIONS)
            self._reader.assign({place: bounds[place].start for place in _PARTITIONS})
            self._assigned = True
        records = await self._reader.poll(
            timeout_ms=limits.FETCH_WAIT_MS, max_records=limits.POLL_RECORDS_MAX
        )
        for record in records:
            try:
                self._view.apply(decode(record.value, UsageTotals))
            except Undecodable:
                continue  # the view informs; a record nobody can read is not worth a dead letter
