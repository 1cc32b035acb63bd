"""Planted bugs in who holds a key, and in what clients of a running reply are sent."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from gateway import keyed as keyed_module
from gateway.claim_tail import ClaimTail
from gateway.claims import Claims
from gateway.cursor import Cursor
from gateway.drafting import Ticket
from gateway.idempotency import ClaimBook
from gateway.keyed import Keyed
from gateway.orphans import Orphans
from gateway.reader import Followed
from gateway.reply_tails import ReplyTails
from gateway.rereading import Rereading
from infra.ports import LogRecord
from schemas import limits
from schemas.assembler import Assembler, SseEvent
from schemas.assembler.held_text import HeldText
from schemas.codec import decode
from schemas.fold import End, ReplyFold
from schemas.idempotency import IdempotencyRecord, KeyClaimed, KeyReleased
from schemas.ids import RequestId
from schemas.replies import CloseReason
from tests.assembler_cases import ByteDecoder

_claim, _left, _end_if_late = Claims.claim, Orphans.left, Keyed._end_if_late
_book_claim, _take, _ticket = ClaimBook._claim, ClaimTail._take, keyed_module._ticket
_feed = Assembler.feed


def last_claim_wins(self: ClaimBook, claim: KeyClaimed) -> None:
    """Every claim wins, whoever holds the key."""
    if claim.nonce not in self._won:
        self._held.pop(claim.scope, None)
    _book_claim(self, claim)


def loser_runs(self: ClaimTail, record: LogRecord) -> None:
    """A claim that is read back counts as won."""
    claimed = decode(record.value, IdempotencyRecord).claimed
    future = None if claimed is None else self._waiting.pop(claimed.nonce, None)
    _take(self, record)
    if future is not None and not future.done():
        future.set_result(True)


async def believe_what_was_sent(self: Claims, claim: KeyClaimed) -> bool:
    """The event goes out once the claim is acknowledged, before it is read back."""
    return await self._sent(claim.scope, claim)


async def wait_for_nothing(self: Claims, claim: KeyClaimed) -> bool:
    """The event goes out beside its claim."""
    self._later(claim.scope, claim)
    return True


def judged_at_each_landing(self: ClaimBook, claim: KeyClaimed) -> None:
    """A claim is judged again each time that it lands."""
    if self._won.pop(claim.nonce, None) is not None:
        self._order = type(self._order)(entry for entry in self._order if entry[2] != claim.nonce)
    _book_claim(self, claim)


def with_a_new_id(claim: KeyClaimed) -> Ticket:
    """An event that is sent again gets an id of its own."""
    other = RequestId(f"ffffffff{claim.request_id[8:]}")
    return replace(_ticket(claim), request_id=other)


def with_a_new_floor(claim: KeyClaimed) -> Ticket:
    """An event that is sent again gets a floor of its own."""
    locator = replace(claim.locator, floor=claim.locator.floor + 1)
    return replace(_ticket(claim), locator=locator)


def to_another_lane(claim: KeyClaimed) -> Ticket:
    """An event that is sent again goes to another lane."""
    return replace(_ticket(claim), lane=(claim.lane + 1) % limits.LANES)


def void_after_tokens(fold: ReplyFold) -> bool:
    """A key is freed by any end without a terminal, tokens or not."""
    return fold.end is not None and fold.end.terminal is None


async def release_unread(self: Keyed, followed: Followed) -> None:
    """A close that was sent counts as an end."""
    late_ms = followed.request.admit_by_ms + limits.LATE_MARGIN_MS
    if followed.fold.starts or followed.fold.end or self._clock.now_ms() < late_ms:
        return
    self._closer.close(followed, CloseReason.LATE)
    followed.fold.end = End(terminal=None, close_reason=CloseReason.LATE, append_time_ms=0)


def close_at_once(self: Orphans, followed: Followed) -> None:
    """A client that leaves ends its reply, grace time or not."""
    _left(self, followed)
    request = followed.request
    gone = followed.owned and not followed.mailboxes and followed.fold.end is None
    if gone and request.resumable and not request.keyed:
        self._closer.close(followed, CloseReason.CANCELLED)


def close_keyed_ones(self: Orphans, followed: Followed) -> None:
    """A client that leaves ends its reply, key or not."""
    _left(self, followed)
    if followed.request.keyed and not followed.mailboxes and followed.fold.end is None:
        self._closer.close(followed, CloseReason.CANCELLED)


class RecordAtATime(Assembler):
    """Characters are put together within one record only."""

    def feed(self, choice: int, token_ids: Sequence[int], *rest: Any) -> tuple[SseEvent, ...]:
        """Begin each time with a fresh decoder."""
        self._decoders[choice] = ByteDecoder()
        return _feed(self, choice, token_ids, *rest)


class StopsWithinARecord(Assembler):
    """Stop strings are held back within one record only."""

    def feed(self, choice: int, token_ids: Sequence[int], *rest: Any) -> tuple[SseEvent, ...]:
        """Show first what was held back."""
        held = self._held[choice]
        self._held[choice] = HeldText([matcher.stop for matcher in held._matchers])
        late = held.end(None)
        shown = self._numbered(self._shape.text(choice, late)) if late else ()
        return (*shown, *_feed(self, choice, token_ids, *rest))


def rest_with_the_cursors_own(events: tuple[SseEvent, ...], after: Cursor | None) -> list[bytes]:
    """The event that a client has already is sent once more."""
    return _rest(events, after, lambda place, cursor: place >= cursor)


def rest_by_tokens(events: tuple[SseEvent, ...], after: Cursor | None) -> list[bytes]:
    """Events of the newest token that a client has not had are lost."""
    return _rest(events, after, lambda place, cursor: place[0] > cursor.tokens)


def _rest(events: tuple[SseEvent, ...], after: Cursor | None, wanted: Any) -> list[bytes]:
    if after is None:
        return [event.payload for event in events]
    places = [tuple(map(int, event.cursor.split("-"))) for event in events]
    return [
        event.payload for event, place in zip(events, places, strict=True) if wanted(place, after)
    ]


async def read_from_the_tail(
    self: ReplyTails, tail: Any, reading: Rereading, asked_by: Any, request_id: str, done: Any
) -> Followed:
    """What was accepted before somebody asked is not read."""
    found = tail.find(request_id)
    if found is not None:
        return found  # type: ignore[no-any-return]  # a Followed
    followed = Followed(
        request=asked_by(reading.fold.origin), owned=False, complete_to=tail.next_offset
    )
    tail.follow(followed)
    return followed


def held_for_ever(self: ClaimBook, released: KeyReleased) -> None:
    """A key that was released stays with its claim."""
