"""The reply reader: this gateway's tail of its preferred reply partition.

Owns the tail's position and the folds of replies that somebody here waits for; others' records are
skipped. Floors of new requests come from here (design rules 5.3 and 6.7). Writes nothing. Called by
`submission.py` (follow), `closing.py` (forget) and the composition root or simulator (run).
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct, field

from gateway.mailbox import Mailbox, accept, so_far
from infra.control import Bury
from infra.errors import LogError, OffsetUnreadable
from infra.ports import LogReader, LogRecord, TopicPartition
from schemas import limits
from schemas.codec import decode
from schemas.fold import Origin, ReplyFold
from schemas.ids import Locator
from schemas.replies import CloseReason, ReplyRecord, Start, fact_of
from schemas.requests import Identity, Placement, ReplyHeader
from schemas.topics import REPLIES

__all__ = ["Asked", "Followed", "ReplyReader", "Told"]


class Asked(Protocol):
    """What a follower knows of the request: a `RequestAccepted`, or what a reply's log tells."""

    @property
    def request_id(self) -> str: ...
    @property
    def locator(self) -> Locator: ...
    @property
    def header(self) -> ReplyHeader: ...
    @property
    def identity(self) -> Identity: ...
    @property
    def placement(self) -> Placement: ...
    @property
    def admit_by_ms(self) -> int: ...
    @property
    def deadline_ms(self) -> int: ...
    @property
    def resumable(self) -> bool: ...
    @property
    def keyed(self) -> bool: ...


class Told(Struct, frozen=True, kw_only=True):
    """What is kept of a request once it is on its way: its prompt may be long. Is an `Asked`."""

    request_id: str
    locator: Locator
    header: ReplyHeader
    identity: Identity
    placement: Placement
    admit_by_ms: int
    deadline_ms: int
    resumable: bool = True
    keyed: bool = False


class Followed(Struct, kw_only=True):
    """One reply that this gateway follows, until its end, for any number of consumers."""

    request: Asked
    owned: bool = True
    """True where this gateway answers for its end: the request was sent from here."""
    mailboxes: list[Mailbox] = field(default_factory=list)
    """One for each consumer."""
    fold: ReplyFold = field(default_factory=ReplyFold)
    complete_to: int = 0
    """Facts below this offset are in the fold already (it was read from the floor)."""
    end_offset: int | None = None
    """Where the end stands, once it was read back."""
    closing: CloseReason | None = None
    """Why this gateway asked for the end, where it did; the log may say otherwise."""
    on_end: Callable[["Followed"], None] | None = None
    """Called once, when the end was read back."""
    on_closed: Callable[[], None] | None = None
    """Called likewise, for who asked for the end."""
    _ended: asyncio.Event | None = None

    @property
    def ended(self) -> asyncio.Event:
        """Set once the end was read back; made for the first who asks, which is nearly nobody."""
        if self._ended is None:
            self._ended = asyncio.Event()
            if self.end_offset is not None:
                self._ended.set()
        return self._ended

    def subscribe(self) -> Mailbox:
        """Add a consumer; its mailbox begins with everything accepted so far."""
        mailbox = Mailbox(limits.MAILBOX_ENTRIES_MAX)
        mail = so_far(self.fold)
        if mail is None or len(mail) > limits.MAILBOX_ENTRIES_MAX:
            mailbox.lapse()  # it begins with the log itself
        else:
            mailbox.put(mail, self.complete_to)
        self.mailboxes.append(mailbox)
        return mailbox

    def sent(self) -> None:
        """Let go of all of the request that its reply does not need."""
        asked = self.request
        self.request = Told(
            request_id=asked.request_id,
            locator=asked.locator,
            header=asked.header,
            identity=asked.identity,
            placement=asked.placement,
            admit_by_ms=asked.admit_by_ms,
            deadline_ms=asked.deadline_ms,
            resumable=asked.resumable,
            keyed=asked.keyed,
        )

    def begin(self, start: Start) -> None:
        """Keep the request's own parts in place of the equal ones of a start."""
        asked, origin = self.request, self.fold.origin
        if origin is not None and (start.header, start.identity, start.placement) == (
            asked.header,
            asked.identity,
            asked.placement,
        ):
            self.fold.origin = Origin(
                header=asked.header,
                identity=asked.identity,
                placement=asked.placement,
                append_time_ms=origin.append_time_ms,
            )

    @property
    def told_from(self) -> int:
        """Where the tail's mail begins at the earliest: what lies below came by another reader.

        After the end that one read, none comes at all, wherever the tail stands.
        """
        return self.complete_to if self.end_offset is None else self.end_offset + 1

    def unsubscribe(self, mailbox: Mailbox) -> None:
        """Take a consumer away; repeated calls have no effect."""
        mailbox.close()
        if mailbox in self.mailboxes:
            self.mailboxes.remove(mailbox)

    def finish(self, offset: int) -> None:
        """Note that the end was read back at this offset."""
        self.end_offset = offset
        if self._ended is not None:
            self._ended.set()
        if self.on_closed is not None:
            self.on_closed()
        if self.on_end is not None:
            self.on_end(self)


class ReplyReader:
    """Tails one partition of `replies.v1` and folds the replies registered here."""

    def __init__(self, *, reader: LogReader, partition: int, bury: Bury | None = None) -> None:
        self._reader = reader
        self._partition = TopicPartition(REPLIES, partition)
        self._bury = bury
        self._next_offset: int | None = None
        self._followed: dict[str, Followed] = {}

    @property
    def partition(self) -> int:
        """The reply partition that new requests name."""
        return self._partition.partition

    @property
    def started(self) -> bool:
        """True once the tail has a position, so that floors can be taken."""
        return self._next_offset is not None

    @property
    def next_offset(self) -> int:
        """The next offset this tail takes: nothing of a request not yet sent lies below it."""
        assert self._next_offset is not None, "the reader has not started"
        return self._next_offset

    @property
    def count(self) -> int:
        """How many replies are followed."""
        return len(self._followed)

    async def start(self) -> None:
        """Stand at the partition's present end. Raises LogUnavailable; may be repeated."""
        bounds = await self._reader.bounds([self._partition])
        self._assign(bounds[self._partition].end)

    def follow(self, followed: Followed) -> None:
        """Fold this reply from now on: before its request is sent, or read up to here at least."""
        request = followed.request
        assert request.locator.partition == self.partition, "followed where it is not read"
        known_to = max(request.locator.floor, followed.complete_to)
        assert known_to >= self.next_offset, "records between fold and tail would be missed"
        self._followed[request.request_id] = followed

    def forget(self, request_id: str) -> None:
        """Follow a reply no longer; unknown ids are ignored."""
        self._followed.pop(request_id, None)

    def find(self, request_id: str) -> Followed | None:
        """Return a reply that is followed now."""
        return self._followed.get(request_id)

    def followed(self) -> tuple[Followed, ...]:
        """Return all replies followed now."""
        return tuple(self._followed.values())

    async def run(self) -> None:
        """Read for ever; an unreachable log is waited for and nothing is skipped."""
        while True:
            try:
                if not self.started:
                    await self.start()
                await self.run_once()
            except LogError:
                await asyncio.sleep(limits.RETRY_PAUSE_MS / 1000)

    async def run_once(self) -> None:
        """Take one poll's records: fold them and put what was accepted into mailboxes.

        Raises: LogUnavailable; nothing was taken.
        """
        try:
            records = await self._reader.poll(
                timeout_ms=limits.FETCH_WAIT_MS, max_records=limits.POLL_RECORDS_MAX
            )
        except OffsetUnreadable:
            await self._recover()
            return
        poison = []
        for record in records:
            try:
                self._take(record)
            except ValueError as error:
                poison.append((record, str(error)))
            self._next_offset = record.offset + 1
        for record, reason in poison:  # last: everything read has been taken if this fails
            if self._bury is not None:
                await self._bury(record, reason)

    def _take(self, record: LogRecord) -> None:
        """Fold one record. Raises ValueError (Undecodable) where it is none of ours."""
        facts = [fact_of(entry) for entry in decode(record.value, ReplyRecord).entries]
        for fact in facts:
            followed = self._followed.get(fact.request_id)
            if followed is None or record.offset < followed.complete_to:
                continue
            mail = accept(followed.fold, fact, record.append_time_ms)
            if isinstance(fact, Start):
                followed.begin(fact)
            if mail:
                for mailbox in followed.mailboxes:
                    mailbox.put(mail, record.offset)
            if followed.fold.end is not None:
                self.forget(fact.request_id)
                followed.finish(record.offset)

    async def _recover(self) -> None:
        """Go on from what the log still holds, after retention has overtaken the tail.

        Replies followed now would miss records, so each one's mailbox lapses: its consumer re-reads
        from its floor, finds that gone too, and answers with an error.
        """
        bounds = (await self._reader.bounds([self._partition]))[self._partition]
        for followed in self.followed():
            for mailbox in followed.mailboxes:
                mailbox.lapse()
            self.forget(followed.request.request_id)
        self._assign(bounds.start if self.next_offset < bounds.start else bounds.end)

    def _assign(self, offset: int) -> None:
        self._reader.assign({self._partition: offset})
        self._next_offset = offset
