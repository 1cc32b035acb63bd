"""The quota service: answers gateways' demands by the ledger, one after the other in log order.

Owns nothing that the log does not hold: every grant carries the state behind it, and a new service
reads the grants back (docs/adr/0011-quota-without-tables.md). Its reign begins with a record in the
grants topic; what an earlier service sends after that counts for nobody. Run by `__main__.py`,
beside Faust and without it.
"""

import asyncio

from infra.dead_letters import DeadLetters
from infra.errors import LogError
from infra.metrics import Metrics
from infra.ports import LogReader, LogRecord, LogWriter, TopicPartition
from schemas import limits
from schemas.codec import Undecodable, decode, encode
from schemas.quota import QuotaDemanded, QuotaGranted, Reigns
from schemas.quota_ledger import Ledger
from schemas.topics import QUOTA_DEMANDS, QUOTA_GRANTS

__all__ = ["QuotaService"]

_DEMANDS = TopicPartition(QUOTA_DEMANDS, 0)
_GRANTS = TopicPartition(QUOTA_GRANTS, 0)


class QuotaService:
    """One service; of several that run, the one whose reign began last answers."""

    def __init__(
        self,
        *,
        reader: LogReader,
        writer: LogWriter,
        service: str,
        dead_letters: DeadLetters,
        metrics: Metrics,
    ) -> None:
        """Take the parts; `service` is this process's incarnation."""
        self._reader = reader
        self._writer = writer
        self._service = service
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._ledger: Ledger | None = None
        """None while another service answers, or none began yet."""
        self._began = False
        self._unanswered_ms: int | None = None
        """Append time of the oldest demand that the other service did not answer."""

    async def run(self) -> None:
        """Answer for ever; after an error of the log a new reign begins."""
        while True:
            try:
                if not self._began:
                    await self.begin()
                await self.run_once()
            except LogError:
                self._began = False
                await asyncio.sleep(limits.RETRY_PAUSE_MS / 1000)

    async def begin(self) -> None:
        """Begin a reign: from here on only this service's grants count. Raises LogError."""
        self._ledger = None
        demands = (await self._reader.bounds([_DEMANDS]))[_DEMANDS]
        opening = QuotaGranted(
            service=self._service,
            reign=-1,
            org="",
            gateway="",
            seq=0,
            at_ms=0,
            levels=(),
            held=(),
            taken=(),
            held_by_others=(),
            slots=0,
            slots_of_others=0,
            short=False,
        )
        began = await self._writer.send(QUOTA_GRANTS, 0, encode(opening))
        grants = (await self._reader.bounds([_GRANTS]))[_GRANTS]
        oldest = max(grants.start, began.offset - limits.QUOTA_RECOVERED_MAX)
        ledger = Ledger(self._service, began.offset, begin_full=oldest == grants.start)
        await self._read_back(ledger, oldest, began.offset)
        # Older demands are not waited for any more: gateways ask again.
        self._reader.assign({_DEMANDS: demands.end, _GRANTS: began.offset + 1})
        self._ledger, self._began, self._unanswered_ms = ledger, True, None

    async def run_once(self) -> None:
        """Answer what has come. Raises LogError."""
        records = await self._reader.poll(
            timeout_ms=limits.FETCH_WAIT_MS, max_records=limits.POLL_RECORDS_MAX
        )
        for record in records:
            if record.topic == QUOTA_GRANTS:
                self._watch(record)
            else:
                await self._answer(record)

    async def _read_back(self, ledger: Ledger, first: int, end: int) -> None:
        reigns = Reigns()
        self._reader.assign({_GRANTS: first})
        while self._reader.position(_GRANTS) < end:
            for record in await self._reader.poll(
                timeout_ms=limits.FETCH_WAIT_MS, max_records=limits.POLL_RECORDS_MAX
            ):
                grant = _grant(record)
                if grant is None or record.offset >= end:
                    continue
                if reigns.counts(grant, record.offset):
                    ledger.recover(grant)

    def _watch(self, record: LogRecord) -> None:
        """Stand by once another service began later."""
        grant = _grant(record)
        if grant is None or grant.service == self._service:
            return
        self._unanswered_ms = None
        if not grant.org:
            self._ledger = None

    async def _answer(self, record: LogRecord) -> None:
        self._metrics.count("log_records_read", topic=record.topic)
        if self._ledger is None:
            await self._take_over(record.append_time_ms)
            return
        try:
            demand = decode(record.value, QuotaDemanded)
        except Undecodable as error:
            await self._dead_letters.bury(record, str(error))
            return
        grant = self._ledger.handle(demand, record.append_time_ms)
        if grant is not None:
            # A grant that is lost is taken back by its gateway's next demand.
            await self._writer.enqueue(QUOTA_GRANTS, 0, encode(grant), key=grant.gateway.encode())
            self._metrics.count("quota_grants")

    async def _take_over(self, now_ms: int) -> None:
        """Begin a reign where the other service leaves demands unanswered."""
        if self._unanswered_ms is None:
            self._unanswered_ms = now_ms
        elif now_ms - self._unanswered_ms > limits.QUOTA_TAKEOVER_MS:
            await self.begin()


def _grant(record: LogRecord) -> QuotaGranted | None:
    try:
        return decode(record.value, QuotaGranted)
    except Undecodable:
        return None  # what no reader understands counts for none
