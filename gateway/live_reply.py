"""A reply as its client's request sees it: accepted chunks, then how it ended.

Owns the consumer's side of the mailbox, the re-reading after an overflow, and the two alarms of a
request (`admit_by`, deadline). Makes no text (`schemas/assembler.py`) and no HTTP. Made by
`submission.py`; consumed by the HTTP handlers and by the simulator's clients.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from gateway.closing import Closer
from gateway.errors import CutByDrain, ReplyBroken, broken_by
from gateway.mailbox import Chunk, Mail, Mailbox
from gateway.reader import Asked, Followed, ReplyReader
from gateway.rereading import Rereading, RereadingPool
from infra.errors import LogUnavailable, OffsetUnreadable
from infra.ports import Clock
from schemas import limits
from schemas.fold import End
from schemas.replies import CloseReason

__all__ = ["LiveReply"]

_NEVER_MS = 1 << 62


class LiveReply:
    """One client's view of one reply. Take until `end` is set, then `release`."""

    def __init__(
        self,
        *,
        followed: Followed,
        mailbox: Mailbox,
        reader: ReplyReader,
        closer: Closer,
        rereadings: RereadingPool,
        clock: Clock,
        on_release: Callable[["LiveReply"], None],
    ) -> None:
        """Take the parts; `reader` is the tail of the reply's partition, `mailbox` this consumer's.

        `on_release` decides what a reply without consumers means; it may be called again.
        """
        self._followed = followed
        self._mailbox = mailbox
        self._reader = reader
        self._closer = closer
        self._rereadings = rereadings
        self._clock = clock
        self._on_release = on_release
        self._rereading: Rereading | None = None
        self._tokens_taken = 0
        self._answer_by_ms: int | None = None
        self._interrupted = False
        self._detached: str | None = None
        self._cut: str | None = None
        self.end: End | None = None
        """How the reply ended; set once every accepted chunk before it has been taken."""
        self.overflows = 0
        """How often the mailbox was dropped and the reply read again from the log."""

    @property
    def request(self) -> Asked:
        """The request as it was sent: its id, locator and header."""
        return self._followed.request

    @property
    def followed(self) -> Followed:
        """The reply itself, which other consumers may share."""
        return self._followed

    @property
    def accepted_count(self) -> int:
        """Tokens accepted so far, taken or not."""
        return self._followed.fold.accepted_count

    @property
    def started(self) -> bool:
        """True once a worker's start was read."""
        return self._followed.fold.starts > 0

    async def take(self, timeout_ms: int) -> list[Chunk]:
        """Return the chunks accepted since the last call, in log order.

        Empty after `timeout_ms` without any, after `interrupt`, and once `end` is set.

        Raises: ReplyBroken where the reply cannot be followed to its end any more.
        """
        until_ms = self._clock.now_ms() + timeout_ms
        while self.end is None and not self._interrupted:
            if self._detached is not None:
                raise CutByDrain(self._detached)
            mail = self._mailbox.take() if not self._mailbox.lapsed else await self._reread()
            if mail:
                return self._deliver(mail)
            now_ms = self._clock.now_ms()
            self._ring(now_ms)
            if now_ms >= until_ms:
                break
            if not self._mailbox.lapsed:
                wake_ms = min(until_ms, self._next_alarm_ms())
                await self._mailbox.wait(max(1, wake_ms - now_ms) / 1000)
        return []

    def offer_to(self, offer: Callable[[], bool]) -> None:
        """Offer chunks that come while `take` waits to a callback, which may `take_waiting`.

        It returns False where it leaves them to `take`.
        """
        self._mailbox.offer_to(offer)

    def take_waiting(self) -> list[Chunk]:
        """Return the chunks that were offered."""
        return self._deliver(self._mailbox.take())

    async def take_end(self, on_first: Callable[[], None]) -> None:
        """Wait until `end` is set or the reply is interrupted, for a client that is sent no token.

        The terminal holds all of them. `on_first` is called when the first one was read, if any is
        before the end. Raises: ReplyBroken as `take` does.
        """
        self._mailbox.keep_only_end(on_first)
        while self.end is None and not self._interrupted:
            await self.take(limits.KEEPALIVE_MS)

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """Yield chunks until `end` is set or the reply is interrupted."""
        while self.end is None and not self._interrupted:
            for chunk in await self.take(limits.KEEPALIVE_MS):
                yield chunk

    def close(self, reason: CloseReason, message: str | None = None) -> None:
        """Ask for the reply's end; repeated calls have no effect, and a terminal may come first."""
        if not self._ended and self._answer_by_ms is None:
            self._answer_by_ms = self._clock.now_ms() + limits.CLOSE_READ_BACK_MS
            self._closer.close(self._followed, reason, message)
            self._mailbox.wake()

    def interrupt(self) -> None:
        """Stop consuming: the client has gone. A waiting `take` returns in a moment.

        Where thousands leave together, the ends of their replies come before the words about them.
        """
        if not self._interrupted:
            self._interrupted = True
            self._part()
            wait_ms = limits.FAREWELL_MS + limits.FAREWELL_MS_PER_CLOSE * self._closer.pending
            wait_s = min(wait_ms, limits.FAREWELL_MS_MAX) / 1000
            asyncio.get_running_loop().call_later(wait_s, self._mailbox.wake)

    def cut(self, message: str) -> None:
        """Ask for the reply's end since this gateway stops; another end may come first."""
        if not self._ended and self._answer_by_ms is None:
            self._cut = message
            self.close(CloseReason.FAILED, message)

    def broken(self) -> ReplyBroken:
        """Return the error of a reply whose `end` is no terminal."""
        assert self.end is not None, "asked too early"
        if self._cut is not None and self.end.message == self._cut:
            return CutByDrain(self._cut)
        return broken_by(self.end)

    def detach(self, message: str) -> None:
        """End this consumer since this gateway stops; the reply runs on and can be resumed."""
        self._detached = message
        self._mailbox.wake()

    @property
    def interrupted(self) -> bool:
        """True after `interrupt`."""
        return self._interrupted

    async def release(self) -> None:
        """Stop consuming; what becomes of a reply that has not ended is up to `on_release`."""
        self._part()
        if self._rereading is not None:
            rereading, self._rereading = self._rereading, None
            await self._rereadings.close(rereading)

    def _part(self) -> None:
        self._followed.unsubscribe(self._mailbox)
        self._on_release(self)

    async def _reread(self) -> list[Mail]:
        """Return mail from the log, after an overflow, until the tail's can be taken again."""
        request = self.request
        try:
            if self._rereading is None:
                self._rereading = await self._rereadings.open(
                    request.request_id, request.locator, self._tokens_taken
                )
                self.overflows += self._rereading is not None
            if self._rereading is None:  # too many read at once: wait for a place
                await self._mailbox.wait(limits.RETRY_PAUSE_MS / 1000)
                return []
            mail = await self._rereading.read()
        except OffsetUnreadable as error:
            raise ReplyBroken(CloseReason.FAILED, "the reply is not in the log any more") from error
        except LogUnavailable as error:
            last_ms = request.deadline_ms + limits.CLOSE_READ_BACK_MS
            if self._clock.now_ms() >= last_ms:
                raise ReplyBroken(CloseReason.DEADLINE, "the log cannot be read") from error
            await self._mailbox.wait(limits.RETRY_PAUSE_MS / 1000)
            return []
        # The tail may stand below what another reader has read already: it will not tell of that.
        if self._rereading.next_offset >= max(self._reader.next_offset, self._followed.told_from):
            self._mailbox.join(self._rereading.next_offset)
            rereading, self._rereading = self._rereading, None
            await self._rereadings.close(rereading)
        return mail

    def _deliver(self, mail: list[Mail]) -> list[Chunk]:
        last = mail[-1]
        if isinstance(last, End):
            self.end = last
        chunks = [entry for entry in mail if isinstance(entry, Chunk)]
        self._tokens_taken += sum(len(chunk.token_ids) for chunk in chunks)
        return chunks

    @property
    def _ended(self) -> bool:
        """True once the tail has read the end, whether or not this consumer is that far."""
        return self._followed.fold.end is not None

    def _next_alarm_ms(self) -> int:
        request = self.request
        if self._ended:
            return _NEVER_MS  # all that is left is to hand it over
        if self._answer_by_ms is not None:
            return self._answer_by_ms
        if self.started:
            return request.deadline_ms
        return min(request.deadline_ms, request.admit_by_ms + limits.LATE_MARGIN_MS)

    def _ring(self, now_ms: int) -> None:
        """Act on an alarm that has passed. Raises ReplyBroken where our close is not read back."""
        if now_ms < self._next_alarm_ms():
            return
        if self._answer_by_ms is not None:
            if self._cut is not None:
                raise CutByDrain(self._cut)
            reason = self._followed.closing or CloseReason.FAILED
            raise ReplyBroken(reason, "the end of the reply could not be confirmed")
        if now_ms >= self.request.deadline_ms:
            self.close(CloseReason.DEADLINE)
        else:
            self.close(CloseReason.LATE)
