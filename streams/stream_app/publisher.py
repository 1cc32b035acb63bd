"""Publishes totals to `usage-totals.v1`, each org at most once per interval.

Owns what changed and is not published yet: one newest total per org and partition, so its size is
bounded by the table's. A failed send is repeated; an old one that lands late is harmless, since
readers keep the highest `next_offset`.
"""

import asyncio

from infra.errors import SendUnknown
from infra.ports import LogWriter
from schemas import limits
from schemas.codec import encode
from schemas.topics import USAGE_TOTALS
from schemas.usage import UsageTotals


class TotalsPublisher:
    """Sends changed totals to the partition of their source."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._changed: dict[tuple[int, str], UsageTotals] = {}
        self._wake = asyncio.Event()

    def offer(self, totals: UsageTotals) -> None:
        """Queue a total in place of any older one of its org and partition."""
        key = (totals.partition, totals.org)
        held = self._changed.get(key)
        if held is None or held.next_offset <= totals.next_offset:
            self._changed[key] = totals
        self._wake.set()

    async def run(self) -> None:
        """Publish for ever; sleeps while nothing changes. Raises SendRefused."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.run_once()
            await asyncio.sleep(limits.TOTALS_PUBLISH_EVERY_MS / 1000)

    async def run_once(self) -> None:
        """Publish what has changed; what may not have landed is offered again."""
        batch, self._changed = self._changed, {}
        sends = [
            (
                totals,
                await self._writer.enqueue(
                    USAGE_TOTALS, totals.partition, encode(totals), key=totals.org.encode()
                ),
            )
            for totals in batch.values()
        ]
        for totals, sent in sends:
            try:
                await sent
            except SendUnknown:
                self.offer(totals)
