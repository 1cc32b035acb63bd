"""The mailbox between the reply reader and one client's request: bounded, dropped when it is full.

Owns what is waiting to be taken and the one wake-up of its consumer. Decides nothing about
acceptance (`schemas/fold.py`) and reads no log: a dropped mailbox is refilled by
`gateway/rereading.py` and joined again.
"""

import asyncio
from dataclasses import dataclass

from schemas import limits
from schemas.fold import End, ReplyFold
from schemas.replies import Closed, Delta, Start, Stop, TokenLogprob

__all__ = ["Chunk", "Mail", "Mailbox", "accept", "so_far"]

_CHUNK_TOKENS_MAX = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Accepted tokens of one choice."""

    choice: int
    token_ids: tuple[int, ...]
    cached_tokens: int | None
    """On the first accepted tokens of the reply; None later."""
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

    def __init__(self, entries_max: int = limits.MAILBOX_ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._entries: list[Mail] = []
        self._wake = asyncio.Event()
        self._joined_from = 0
        self._closed = False
        self.lapsed = False
        """True from an overflow until `join`: what came meanwhile is only in the log."""

    def put(self, mail: tuple[Mail, ...], offset: int) -> None:
        """Add the mail of the record at `offset`; where it does not fit, drop everything."""
        if self._closed or self.lapsed or offset < self._joined_from:
            return
        if len(self._entries) + len(mail) > self._entries_max:
            self.lapse()
        else:
            self._entries.extend(mail)
            self._wake.set()

    def lapse(self) -> None:
        """Drop all that waits; the consumer goes on from the log itself."""
        self._entries.clear()
        self.lapsed = True
        self._wake.set()

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
        """Wake the consumer although no mail came (it looks at its own state)."""
        self._wake.set()

    def close(self) -> None:
        """Drop all mail from now on: the consumer has gone."""
        self._closed = True
        self._entries.clear()

    async def wait(self, timeout_s: float) -> None:
        """Wait for a wake-up, at most `timeout_s`; all puts of one poll are one wake-up."""
        if not self._wake.is_set():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()
            except TimeoutError:
                return
        self._wake.clear()
