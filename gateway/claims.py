"""Claiming, releasing and finishing idempotency keys on the log.

Owns this gateway's sends to `idempotency.v1` and their retries. Which claim wins is read back by
`claim_tail.py`; what follows from it is decided in `keyed.py`.
"""

import asyncio

from gateway.claim_tail import ClaimTail
from gateway.errors import LogAway, Overloaded
from gateway.idempotency import Held, is_void
from gateway.reader import Followed
from infra.errors import LogError
from infra.ports import Clock, LogWriter
from schemas import limits
from schemas.codec import encode
from schemas.idempotency import KeyClaimed, KeyDone, KeyReleased, ReplyResumed, record_of
from schemas.requests import RequestClass
from schemas.topics import IDEMPOTENCY, idempotency_partition

__all__ = ["Claims"]


class Claims:
    """Sends facts about keys and believes what comes back."""

    def __init__(self, *, writer: LogWriter, clock: Clock, tail: ClaimTail) -> None:
        self._writer = writer
        self._clock = clock
        self._tail = tail
        self._tasks: set[asyncio.Task[bool]] = set()

    def held(self, scope: str) -> Held | None:
        """Return who holds a scope, as far as the log has been read."""
        return self._tail.held(scope)

    async def held_by_now(self, scope: str) -> Held | None:
        """Return who holds a scope once everything up to now is read. Raises LogAway."""
        try:
            await self._tail.catch_up(scope)
        except LogError as error:
            raise LogAway("Service unavailable: idempotency keys cannot be read now") from error
        return self._tail.held(scope)

    def expired(self, held: Held) -> bool:
        """Tell whether a claim is too old by our clock; the log has the last word."""
        return self._clock.now_ms() - held.since_ms >= limits.IDEMPOTENCY_MS

    def require_room(self, request_class: RequestClass = RequestClass.INTERACTIVE) -> None:
        """Refuse a new claim where memory for claims is used up. Raises Overloaded.

        Items of batches leave a part of it to the keys of clients.
        """
        share = limits.BATCH_CLAIMS_SHARE_MAX if request_class is RequestClass.BATCH else 1.0
        if self._tail.is_full(share):
            raise Overloaded("Overloaded: too many idempotency keys in use; try without one")

    async def claim(self, claim: KeyClaimed) -> bool:
        """Claim a key; return whether the claim won.

        Sent again, under the same nonce, until it is read back. Raises LogAway where that took
        too long: the claim may stand or land later, and the next retry goes on under its ids.
        """
        verdict = self._tail.expect(claim.nonce)
        until_s = self._clock.monotonic_s() + limits.CLAIM_WITHIN_MS / 1000
        try:
            while self._clock.monotonic_s() < until_s:
                sending = self._later(claim.scope, claim)
                for wait_ms in (limits.SEND_TIMEOUT_MS, limits.CLAIM_READ_BACK_MS):
                    # The first wait is for the acknowledgement, the second for the read-back; a
                    # claim that is read back before it is acknowledged needs neither.
                    wanted = [verdict] if sending.done() else [verdict, sending]
                    await asyncio.wait(
                        wanted, timeout=wait_ms / 1000, return_when=asyncio.FIRST_COMPLETED
                    )
                    if verdict.done():
                        return verdict.result()
                    if sending.done() and not sending.result():
                        break
                await asyncio.sleep(limits.RETRY_PAUSE_MS / 1000)
        finally:
            self._tail.give_up(claim.nonce)
        raise LogAway("Service unavailable: the idempotency key could not be recorded")

    async def release(self, claim: KeyClaimed) -> None:
        """Free the key of a reply that ended without a token, and wait until that is read back.

        Raises: Overloaded where it is not.
        """
        until_s = self._clock.monotonic_s() + limits.CLOSE_READ_BACK_MS / 1000
        sent = False
        while self._holds(claim) and self._clock.monotonic_s() < until_s:
            if not sent:
                sent = await self._sent(
                    claim.scope, KeyReleased(scope=claim.scope, nonce=claim.nonce)
                )
            await asyncio.sleep(limits.CLAIM_POLL_MS / 1000)
        if self._holds(claim):
            raise Overloaded("Overloaded: the idempotency key could not be released")

    def settle(self, claim: KeyClaimed, followed: Followed) -> None:
        """Note how the reply of a claim ended, in the background; retries heal what is lost."""
        held = self._tail.held(claim.scope)
        if held is not None and held.claim.nonce == claim.nonce and held.done is not None:
            return
        if is_void(followed.fold):
            fact: KeyReleased | KeyDone = KeyReleased(scope=claim.scope, nonce=claim.nonce)
        elif followed.end_offset is not None:
            fact = KeyDone(
                scope=claim.scope,
                nonce=claim.nonce,
                end_offset=followed.end_offset,
                cached_tokens=followed.fold.cached_tokens,
            )
        else:
            return
        self._later(claim.scope, fact)

    def announce(self, request_id: str, gateway: str) -> None:
        """Tell the reply's own gateway that a client follows it here."""
        self._later(request_id, ReplyResumed(request_id=request_id, gateway=gateway))

    async def stop(self, timeout_s: float) -> None:
        """Give what is on its way up to `timeout_s`."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _holds(self, claim: KeyClaimed) -> bool:
        held = self._tail.held(claim.scope)
        return held is not None and held.claim.nonce == claim.nonce

    def _later(
        self, name: str, fact: KeyClaimed | KeyReleased | KeyDone | ReplyResumed
    ) -> "asyncio.Task[bool]":
        task = asyncio.create_task(self._sent(name, fact))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _sent(
        self, name: str, fact: KeyClaimed | KeyReleased | KeyDone | ReplyResumed
    ) -> bool:
        """Append a fact; return whether it was acknowledged."""
        try:
            await self._writer.send(
                IDEMPOTENCY,
                idempotency_partition(name),
                encode(record_of(fact)),
                key=name.encode(),
            )
        except LogError:
            return False
        return True
