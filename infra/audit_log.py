"""What the audit reads from the log: request records, the fold of every reply, usage events.

Owns one pass over fixed ranges; decides nothing about right and wrong. Every reply record is
decoded and folded, not only those that start or end something: a terminal counts only against the
tokens accepted before it, and a closed reply is billed by its deltas. Memory holds one small
encoded event per ended reply, and token ids only of replies that have not ended at that point of
the log.
"""

from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from infra.audit_compare import Metered, Place
from infra.errors import LogUnavailable
from infra.ports import Bounds, Clock, LogAdmin, LogReader, LogRecord, TopicPartition
from schemas import limits
from schemas.codec import Undecodable, decode, encode
from schemas.fold import ReplyFold
from schemas.ids import Locator
from schemas.replies import ReplyRecord, fact_of
from schemas.requests import RequestAccepted
from schemas.topics import REPLIES, USAGE
from schemas.usage import UsageRecorded, usage_of

_POLL_MS = 1_000
_REQUESTS_PREFIX = "requests."

Ranges = Mapping[TopicPartition, Bounds]


class EncodedUsage(Mapping[str, UsageRecorded]):
    """Usage by request id, kept encoded and decoded when looked at: a fifth of the memory."""

    def __init__(self) -> None:
        self.encoded: dict[str, bytes] = {}

    def __getitem__(self, request_id: str) -> UsageRecorded:
        return decode(self.encoded[request_id], UsageRecorded)

    def __iter__(self) -> Iterator[str]:
        return iter(self.encoded)

    def __len__(self) -> int:
        return len(self.encoded)


@dataclass(slots=True)
class _Event:
    encoded: bytes
    places: tuple[Place, ...]
    row_is_due: bool
    request_is_due: bool
    equal: bool = True


class MeteredEvents(Mapping[str, Metered]):
    """Usage events by request id, as `EncodedUsage`."""

    def __init__(self) -> None:
        self._events: dict[str, _Event] = {}

    def add(
        self,
        record: LogRecord,
        known: Mapping[str, bytes],
        *,
        row_is_due: bool,
        request_is_due: bool,
    ) -> None:
        """Take one record of `usage.v1`; `known` lends its bytes where they are equal.

        One that cannot be decoded is passed over, as the sink does: its request shows as not
        metered.
        """
        try:
            request_id = decode(record.value, UsageRecorded).request_id
        except Undecodable:
            return
        place = (record.partition, record.offset)
        event = self._events.get(request_id)
        if event is None:
            same = known.get(request_id)
            value = same if same is not None and same == record.value else record.value
            self._events[request_id] = _Event(value, (place,), row_is_due, request_is_due)
            return
        event.equal = event.equal and event.encoded == record.value
        event.places = (*event.places, place)

    def __getitem__(self, request_id: str) -> Metered:
        event = self._events[request_id]
        return Metered(
            usage=decode(event.encoded, UsageRecorded),
            places=event.places,
            equal=event.equal,
            row_is_due=event.row_is_due,
            request_is_due=event.request_is_due,
        )

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._events

    def __iter__(self) -> Iterator[str]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The ranges that one audit judges.

    Order: ends are taken of usage first, then replies, then requests, so that whatever caused an
    event lies within them: a usage event's end, an end's request record.
    """

    usage: Ranges
    replies: Ranges
    requests: Ranges

    @property
    def holds_all_requests(self) -> bool:
        """Tell whether retention has removed no request record yet."""
        return all(bounds.start == 0 for bounds in self.requests.values())


@dataclass(slots=True, kw_only=True)
class Replies:
    """What request records and replies say."""

    landed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Reply partition and floor by request id."""
    ended: EncodedUsage = field(default_factory=EncodedUsage)
    running: dict[str, ReplyFold] = field(default_factory=dict)

    def expected(self, replies: Ranges) -> EncodedUsage:
        """Return usage of the ended ids whose record landed with a readable floor."""
        found = EncodedUsage()
        found.encoded = {
            request_id: encoded
            for request_id, encoded in self.ended.encoded.items()
            if request_id in self.landed and self.is_readable(request_id, replies)
        }
        return found

    def unreadable(self, replies: Ranges) -> int:
        """Return how many landed ids have lost their floor to retention."""
        return sum(not self.is_readable(request_id, replies) for request_id in self.landed)

    def unfinished(self, replies: Ranges) -> int:
        """Return how many landed ids have not ended."""
        return sum(
            request_id not in self.ended.encoded and self.is_readable(request_id, replies)
            for request_id in self.landed
        )

    def is_readable(self, request_id: str, replies: Ranges) -> bool:
        """Tell whether a landed id's floor is still on the log."""
        partition, floor = self.landed[request_id]
        bounds = replies.get(TopicPartition(REPLIES, partition))
        return bounds is not None and floor >= bounds.start

    def take(self, record: LogRecord) -> None:
        """Fold one record of `replies.v1`."""
        try:
            facts = [fact_of(entry) for entry in decode(record.value, ReplyRecord).entries]
        except ValueError:  # undecodable, or an entry of nothing
            return  # every reader passes over it alike
        for fact in facts:
            request_id = fact.request_id
            home = self.landed.get(request_id)
            if request_id in self.ended.encoded or (home and home[0] != record.partition):
                continue
            fold = self.running.setdefault(request_id, ReplyFold())
            fold.apply(fact, record.append_time_ms)
            if fold.end is not None:
                if fold.origin is not None:
                    self.ended.encoded[request_id] = encode(usage_of(request_id, fold))
                del self.running[request_id]


async def take_snapshot(admin: LogAdmin, reader: LogReader) -> Snapshot:
    """Take the bounds of all topics that the audit judges. Raises LogUnavailable."""
    counts = await admin.topics()

    async def bounds(names: Collection[str]) -> Ranges:
        places = [TopicPartition(name, index) for name in names for index in range(counts[name])]
        return await reader.bounds(places) if places else {}

    present = [name for name in (USAGE, REPLIES) if name in counts]
    if len(present) < 2:
        raise LogUnavailable("the topics are not there yet: run `millstream apply`")
    usage, replies = await bounds([USAGE]), await bounds([REPLIES])
    requests = await bounds(sorted(name for name in counts if name.startswith(_REQUESTS_PREFIX)))
    return Snapshot(usage=usage, replies=replies, requests=requests)


async def read_replies(reader: LogReader, snapshot: Snapshot, clock: Clock) -> Replies:
    """Read request records, then fold replies. Raises OffsetUnreadable, LogUnavailable."""
    found = Replies()
    async for record in read_range(reader, snapshot.requests, clock):
        try:
            request = decode(record.value, RequestAccepted)
        except Undecodable:
            continue  # a worker buries it; it has no usage
        locator: Locator = request.locator
        found.landed.setdefault(request.request_id, (locator.partition, locator.floor))
    async for record in read_range(reader, snapshot.replies, clock):
        found.take(record)
    return found


async def read_range(reader: LogReader, ranges: Ranges, clock: Clock) -> AsyncIterator[LogRecord]:
    """Yield the records of these ranges. Raises OffsetUnreadable, LogUnavailable (no progress)."""
    wanted = {place: bounds for place, bounds in ranges.items() if bounds.start < bounds.end}
    if not wanted:
        return
    reader.assign({place: bounds.start for place, bounds in wanted.items()})
    progress_s = clock.monotonic_s()
    while any(reader.position(place) < bounds.end for place, bounds in wanted.items()):
        records = await reader.poll(timeout_ms=_POLL_MS, max_records=limits.POLL_RECORDS_MAX)
        now_s = clock.monotonic_s()
        if records:
            progress_s = now_s
        elif now_s - progress_s > limits.AUDIT_WAIT_S:
            raise LogUnavailable(f"nothing to read for {limits.AUDIT_WAIT_S} s")
        for record in records:
            if record.offset < wanted[TopicPartition(record.topic, record.partition)].end:
                yield record
    reader.assign({})  # a fetch left open would hold up what is asked next
