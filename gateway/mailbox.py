"""The mailbox between the reply reader and one client's request: bounded, dropped when it is full.

Owns what is waiting to be taken and the one wake-up of its consumer. Decides nothing about
acceptance (`schemas/fold.py`) and reads no log: a dropped mailbox is refilled by
`gateway/rereading.py` and joined again.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from schemas import limits
from schemas.fold import End, ReplyFold
from schemas.replies import Closed, Delta, Start, Stop, TokenLogprob

__all__ = ["Chunk", "Mail", "Mailbox", "accept", "so_far"]

_CHUNK_TOKENS_MAX = 4_096


class Chunk(NamedTuple):
    """Accepted tokens of one choice. A tuple, not a dataclass: nearly each token makes one."""

    choice: int
    token_ids: tuple[int, ...]
    cached_tokens: int | None
    """On the first accepted tokens of the reply, as in the fold; None later."""
    stop: Stop | None
    logprobs: tuple[TokenLogprob, ...] | None = None
    """By token; None where the request did not ask."""


Mail = Chunk | End


def accept(fold: ReplyFold, fact: Start | Delta | Closed, append_time_ms: int) -> tuple[Mail, ...]:
    """Apply one fact to a fold and return what a client gets to see of it.

    The same log gives the same tokens in the same order to every reader: a consumer counts those
    it took and can go on from any other reader's mail.
    """
    first = fold.first_token_at_ms is None
    if not fold.apply(fact, append_time_ms):
        return ()
    mail: list[Mail] = []
    if isinstance(fact, Delta) and (fact.token_ids or fact.stop):
        cached = fold.cached_tokens if first and fact.token_ids else None
        mail.append(
            Chunk(
                choice=fact.choice,
                token_ids=fact.token_ids,
                cached_tokens=cached,
                stop=fact.stop,
                logprobs=fact.logprobs,
            )
        )
    if fold.end is not None:
        mail.append(fold.end)
    return tuple(mail)


def so_far(fold: ReplyFold) -> tuple[Mail, ...] | None:
    """Return the mail of everything accepted so far, for a consumer that comes late.

    None where choices run side by side: a fold keeps no order between them, only the log does.
    """
    if len({choice for _, choice in fold.accepted}) > 1:
        return None
    mail: list[Mail] = []
    for place, token_ids in sorted(fold.accepted.items()):
        logprobs = fold.logprobs.get(place)
        for first in range(0, len(token_ids), _CHUNK_TOKENS_MAX):
            last = first + _CHUNK_TOKENS_MAX
            chunk = Chunk(
                choice=place[1],
                token_ids=tuple(token_ids[first:last]),
                cached_tokens=None if mail else fold.cached_tokens,
                stop=None,
                logprobs=None if logprobs is None else tuple(logprobs[first:last]),
            )
            mail.append(chunk)
    if fold.end is not None:
        mail.append(fold.end)
    return tuple(mail)


class Mailbox:
    """Mail of one reply in log order. The reader puts, one consumer takes."""

    __slots__ = (
        "_alarm",
        "_alarm_s",
        "_closed",
        "_entries",
        "_entries_max",
        "_joined_from",
        "_offer",
        "_offering",
        "_on_first",
        "_only_end",
        "_waiter",
        "_woken",
        "lapsed",
    )

    def __init__(self, entries_max: int = limits.MAILBOX_ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._entries: list[Mail] = []
        self._woken = False
        self._waiter: asyncio.Future[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        """One for many waits: nearly all of them end by mail, long before their time."""
        self._alarm_s = 0.0
        self._joined_from = 0
        self._closed = False
        self._only_end = False
        self._on_first: Callable[[], None] | None = None
        self._offer: Callable[[], bool] | None = None
        self._offering = False
        self.lapsed = False
        """True from an overflow until `join`: what came meanwhile is only in the log."""

    def put(self, mail: Sequence[Mail], offset: int) -> None:
        """Add the mail of the record at `offset`; where it does not fit, drop everything."""
        if self._closed or self.lapsed or offset < self._joined_from:
            return
        if self._only_end:
            mail = self._end_of(mail)
            if not mail:
                return
        if len(self._entries) + len(mail) > self._entries_max:
            self.lapse()
        else:
            self._entries.extend(mail)
            if self._offer is None or self._waiter is None or isinstance(mail[-1], End):
                self.wake()
            elif not self._offering:
                self._offering = True
                asyncio.get_running_loop().call_soon(self._make_offer)

    def offer_to(self, offer: Callable[[], bool]) -> None:
        """Call this where chunks wait and their consumer does: it may take them then and there.

        It returns False where it does not; the consumer is woken instead, as it is for an end. A
        call costs less than a task's turn, and all puts of one poll are one call.
        """
        self._offer = offer

    def keep_only_end(self, on_first: Callable[[], None]) -> None:
        """Drop all mail but the end from now on; call back once where there was any before it."""
        self._only_end, self._on_first = True, on_first
        self._entries = list(self._end_of(self._entries))

    def lapse(self) -> None:
        """Drop all that waits; the consumer goes on from the log itself."""
        self._entries.clear()
        self.lapsed = True
        self.wake()

    def take(self) -> list[Mail]:
        """Return and remove all that waits."""
        entries, self._entries = self._entries, []
        return entries

    def join(self, next_offset: int) -> None:
        """Be filled by the reader again: its mail from `next_offset` on, nothing before."""
        assert self.lapsed and not self._entries, "only a dropped mailbox is joined again"
        self._joined_from = next_offset
        self.lapsed = False

    def wake(self) -> None:
        """Wake the consumer, also where no mail came (it looks at its own state)."""
        self._woken = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """Drop all mail from now on: the consumer has gone."""
        self._closed = True
        self._entries.clear()
        self._on_first = self._offer = None
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    async def wait(self, timeout_s: float) -> None:
        """Wait for a wake-up, at most `timeout_s`; all puts of one poll are one wake-up.

        It may return early without any: an alarm that an earlier wait set is not moved.
        """
        if not self._woken:
            loop = asyncio.get_running_loop()
            self._set_alarm(loop, timeout_s)
            self._waiter = loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._woken = False

    def _make_offer(self) -> None:
        self._offering = False
        if not self._entries or self._offer is None or self._woken:
            return  # the consumer has taken them, is about to, or has gone
        if not self._offer():
            self.wake()

    def _set_alarm(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        due_s = loop.time() + timeout_s
        if self._alarm is not None:
            if self._alarm_s <= due_s:
                return
            self._alarm.cancel()
        self._alarm, self._alarm_s = loop.call_at(due_s, self._ring), due_s

    def _ring(self) -> None:
        self._alarm = None
        self.wake()

    def _end_of(self, mail: Sequence[Mail]) -> Sequence[Mail]:
        """Return the end where it is among the mail, and tell of the first that is not."""
        if self._on_first is not None and mail and isinstance(mail[0], Chunk):
            self._on_first()
            self._on_first = None
        return mail[-1:] if mail and isinstance(mail[-1], End) else ()
