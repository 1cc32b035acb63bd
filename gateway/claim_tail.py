"""The tail of `idempotency.v1`: every gateway reads all claims back and so knows who holds a key.

Owns the position in all its partitions, the books, and who waits for the verdict on a claim. Sends
nothing (`claims.py`). Run by the composition root or the simulator.
"""

import asyncio
from collections.abc import Callable

from gateway.idempotency import ClaimBook, Held
from infra.control import Bury
from infra.errors import LogError, LogUnavailable, OffsetUnreadable
from infra.ports import Clock, LogReader, LogRecord, TopicPartition
from schemas import limits
from schemas.codec import Undecodable, decode
from schemas.idempotency import IdempotencyRecord
from schemas.topics import IDEMPOTENCY, idempotency_partition

__all__ = ["ClaimTail"]

_PLACES = tuple(
    TopicPartition(IDEMPOTENCY, partition) for partition in range(limits.IDEMPOTENCY_PARTITIONS)
)
_OLD_MS = limits.IDEMPOTENCY_MS + 3_600_000
"""Older records are skipped undecoded; the hour is for clocks that differ."""


class ClaimTail:
    """Reads claims for ever. Safe to ask at any time; a claim is believed once it is read back."""

    def __init__(
        self,
        *,
        reader: LogReader,
        clock: Clock,
        on_resumed: Callable[[str, str], None] = lambda request_id, gateway: None,
        bury: Bury | None = None,
        claims_max: int = limits.IDEMPOTENCY_CLAIMS_MAX,
    ) -> None:
        """Take the parts; `on_resumed(request_id, gateway)` hears who follows a reply elsewhere."""
        self._reader = reader
        self._clock = clock
        self._on_resumed = on_resumed
        self._bury = bury
        self._claims_max = claims_max
        self._books = {place.partition: ClaimBook() for place in _PLACES}
        self._next: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._waiting: dict[str, asyncio.Future[bool]] = {}

    @property
    def caught_up(self) -> bool:
        """True once everything that stood in the topic at start has been read."""
        return bool(self._next) and all(self._next[p] >= self._ends[p] for p in _PLACES)

    def is_full(self, share: float = 1.0) -> bool:
        """Tell whether a share of the claims that memory is bounded to is in use."""
        return sum(map(len, self._books.values())) >= share * self._claims_max

    def held(self, scope: str) -> Held | None:
        """Return who holds a scope, as far as the log has been read."""
        return self._books[idempotency_partition(scope)].held(scope)

    async def catch_up(self, scope: str) -> None:
        """Wait until all that stands in the scope's partition now has been read.

        Raises: LogUnavailable where the log does not tell or is not read in time.
        """
        place = _PLACES[idempotency_partition(scope)]
        until_s = self._clock.monotonic_s() + limits.REPLY_FIND_MS / 1000
        end = (await self._reader.bounds([place]))[place].end
        while self._next.get(place, -1) < end:
            if self._clock.monotonic_s() >= until_s:
                raise LogUnavailable("claims are not read in time")
            await asyncio.sleep(limits.CLAIM_POLL_MS / 1000)

    def expect(self, nonce: str) -> "asyncio.Future[bool]":
        """Return a future of whether this claim wins; call it before the claim is sent."""
        future = self._waiting.get(nonce)
        if future is None:
            future = self._waiting[nonce] = asyncio.get_running_loop().create_future()
        return future

    def give_up(self, nonce: str) -> None:
        """Wait for a claim no longer."""
        self._waiting.pop(nonce, None)

    async def run(self) -> None:
        """Read for ever; an unreachable log is waited for and nothing is skipped."""
        while True:
            try:
                await self.run_once()
            except LogError:
                await asyncio.sleep(limits.RETRY_PAUSE_MS / 1000)

    async def run_once(self) -> None:
        """Take what has come since the last turn. Raises LogUnavailable; nothing was taken."""
        if not self._next:
            await self._start()
        try:
            records = await self._reader.poll(
                timeout_ms=limits.FETCH_WAIT_MS, max_records=limits.POLL_RECORDS_MAX
            )
        except OffsetUnreadable:  # retention overtook the tail: only what is too old to count
            self._next.clear()
            return
        poison = []
        for record in records:
            try:
                self._take(record)
            except Undecodable as error:
                poison.append((record, str(error)))
            self._next[TopicPartition(record.topic, record.partition)] = record.offset + 1
        for record, reason in poison:
            if self._bury is not None:
                await self._bury(record, reason)

    async def _start(self) -> None:
        """Stand at the beginning: what is older than the window is forgotten while it is read."""
        bounds = await self._reader.bounds(_PLACES)
        self._ends = {place: bounds[place].end for place in _PLACES}
        self._next = {place: bounds[place].start for place in _PLACES}
        self._reader.assign(dict(self._next))

    def _take(self, record: LogRecord) -> None:
        if self._clock.now_ms() - record.append_time_ms > _OLD_MS:
            return
        fact = decode(record.value, IdempotencyRecord)
        if fact.resumed is not None:
            self._on_resumed(fact.resumed.request_id, fact.resumed.gateway)
            return
        book = self._books[record.partition]
        book.apply(fact, record.append_time_ms)
        if fact.claimed is None:
            return
        future = self._waiting.pop(fact.claimed.nonce, None)
        if future is not None and not future.done():
            future.set_result(bool(book.verdict(fact.claimed.nonce)))
