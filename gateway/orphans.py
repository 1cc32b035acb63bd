"""Replies without a consumer: who closes them, and when (design rule 6.6).

Owns the grace time of resumable replies, the deadline of keyed ones, and the announcements by
which gateways learn that a client follows a reply elsewhere. Called by `submission.py` and
`claim_tail.py`; run by the composition root or the simulator.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gateway.closing import Closer
from gateway.reader import Followed
from infra.ports import Clock
from schemas import limits
from schemas.replies import CloseReason

__all__ = ["Orphans"]

_TURN_S = 1.0
_ANNOUNCEMENTS_PER_GRACE = 3
"""One may be lost, and one late, before a grace time is over."""


@dataclass(slots=True, kw_only=True)
class _Orphan:
    followed: Followed
    close_at_ms: int
    reason: CloseReason


class Orphans:
    """Keeps replies whose clients left, until they end, are adopted or their time is over."""

    def __init__(
        self,
        *,
        clock: Clock,
        closer: Closer,
        forget: Callable[[str], None] = lambda request_id: None,
        announce: Callable[[str], None] = lambda request_id: None,
        grace_ms: int = limits.RESUMABLE_GRACE_MS,
    ) -> None:
        """Take the parts.

        `forget` ends the following of another gateway's reply; `announce` tells that gateway that
        a client follows it here.
        """
        self._clock = clock
        self._closer = closer
        self._forget = forget
        self._announce = announce
        self._grace_ms = grace_ms
        self._orphans: dict[str, _Orphan] = {}
        self._guests: dict[str, Followed] = {}
        self._announced_ms: int | None = None

    @property
    def count(self) -> int:
        """How many replies run without a consumer here."""
        return len(self._orphans)

    def adopted(self, followed: Followed) -> None:
        """A consumer came."""
        request = followed.request
        self._orphans.pop(request.request_id, None)
        if not followed.owned and not request.keyed and followed.fold.end is None:
            if request.request_id not in self._guests:
                self._announce(request.request_id)
            self._guests[request.request_id] = followed

    def left(self, followed: Followed) -> None:
        """A consumer went; where it was the last one, close the reply now, later or never."""
        request = followed.request
        if followed.mailboxes or followed.fold.end is not None:
            return
        self._guests.pop(request.request_id, None)
        if not followed.owned:
            self._forget(request.request_id)  # its own gateway, or its worker, sees to its end
        elif request.keyed:
            self._keep(followed, request.deadline_ms + limits.LATE_MARGIN_MS, CloseReason.DEADLINE)
        elif request.resumable:
            until_ms = self._clock.now_ms() + self._grace_ms
            self._keep(followed, until_ms, CloseReason.CANCELLED)
        else:
            self._closer.close(followed, CloseReason.CANCELLED)

    def resumed(self, request_id: str) -> None:
        """A client follows this reply at another gateway: its grace time begins anew."""
        orphan = self._orphans.get(request_id)
        if orphan is not None and orphan.reason is CloseReason.CANCELLED:
            orphan.close_at_ms = self._clock.now_ms() + self._grace_ms

    async def run(self) -> None:
        """Take a turn once a second, for ever."""
        while True:
            self.run_once()
            await asyncio.sleep(_TURN_S)

    def run_once(self) -> None:
        """Close what is due, forget what has ended, announce what is followed for others."""
        now_ms = self._clock.now_ms()
        for request_id, orphan in tuple(self._orphans.items()):
            if orphan.followed.fold.end is not None:
                del self._orphans[request_id]
            elif now_ms >= orphan.close_at_ms:
                del self._orphans[request_id]
                self._closer.close(orphan.followed, orphan.reason)
        every_ms = self._grace_ms // _ANNOUNCEMENTS_PER_GRACE
        if self._announced_ms is None or now_ms - self._announced_ms >= every_ms:
            self._announced_ms = now_ms
            for request_id, followed in tuple(self._guests.items()):
                if followed.fold.end is not None:
                    del self._guests[request_id]
                else:
                    self._announce(request_id)

    def _keep(self, followed: Followed, close_at_ms: int, reason: CloseReason) -> None:
        self._orphans[followed.request.request_id] = _Orphan(
            followed=followed, close_at_ms=close_at_ms, reason=reason
        )
