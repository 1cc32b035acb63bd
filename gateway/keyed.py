"""Requests with an idempotency key: one generation for all who send the same body under it.

Owns the order of look-up, claim, send and attachment, and the re-sends of an event that never
arrived (design rule 6.8). Which claim wins is the log's decision (`idempotency.py`); the reply
itself is followed like any other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gateway.claims import Claims
from gateway.closing import Closer
from gateway.drafting import PLAIN, ReplyForm, Ticket, draft
from gateway.errors import EventTooLarge, KeyReused, Overloaded, ReplyUnknown
from gateway.idempotency import Held, is_void
from gateway.live_reply import LiveReply
from gateway.reader import Followed
from gateway.reply_tails import ReplyTails
from gateway.submission import Submission
from infra.errors import LogError
from infra.ports import Clock, Entropy
from schemas import limits
from schemas.dialects.canonical import CanonicalRequest
from schemas.idempotency import KeyClaimed
from schemas.ids import RequestId
from schemas.replies import CloseReason
from schemas.requests import Identity, RequestAccepted, RequestClass

__all__ = ["Keyed", "KeyedReply", "KeyedRequest"]


class KeyedRequest(Struct, frozen=True, kw_only=True):
    """One call with a key, checked and tokenized."""

    scope: str
    fingerprint: str
    canonical: CanonicalRequest
    prompt_token_ids: Sequence[int]
    identity: Identity
    request_id: RequestId
    """Becomes the reply's where this call wins the key."""
    form: ReplyForm = PLAIN
    before_start: Callable[[], Awaitable[None]] | None = None
    """Awaited before this call starts anything, perhaps more than once; may refuse."""
    request_class: RequestClass = RequestClass.INTERACTIVE
    only_resume: bool = False
    """True where the client is behind an event of the reply: nothing new may be started."""


class KeyedReply(Struct, frozen=True, kw_only=True):
    """What a keyed call follows."""

    reply: LiveReply
    replayed: bool
    """True where the request was not started by this call."""


class Keyed:
    """Starts, attaches and replays."""

    def __init__(
        self,
        *,
        clock: Clock,
        entropy: Entropy,
        submission: Submission,
        claims: Claims,
        tails: ReplyTails,
        closer: Closer,
    ) -> None:
        self._clock = clock
        self._entropy = entropy
        self._submission = submission
        self._claims = claims
        self._tails = tails
        self._closer = closer
        self._claiming: dict[str, asyncio.Event] = {}
        """Scopes that this gateway claims now: later calls wait for the outcome."""
        self._resending: dict[str, asyncio.Task[None]] = {}

    async def submit(self, request: KeyedRequest) -> KeyedReply:
        """Return the key's reply: a new one, the running one, or the finished one.

        Raises: KeyReused (other body), ReplyUnknown (nothing to resume), and what `Submission`
        raises where this call has to start it.
        """
        lost = False
        for _ in range(limits.CLAIM_TRIES_MAX):
            claiming = self._claiming.get(request.scope)
            if claiming is not None:
                await claiming.wait()
            held = self._claims.held(request.scope)
            if held is None and request.only_resume:
                held = await self._claims.held_by_now(request.scope)
            if held is not None and (lost or not self._claims.expired(held)):
                attached = await self._attach(request, held)
                if attached is not None:
                    return KeyedReply(reply=attached, replayed=True)
                continue  # it was over before it began: the key is free now
            if request.only_resume:
                raise ReplyUnknown("no reply is kept under this idempotency key")
            if request.before_start is not None:
                await request.before_start()
            if request.scope in self._claiming:
                continue
            started = await self._start(request)
            if started is not None:
                return KeyedReply(reply=started, replayed=False)
            lost = True
        raise Overloaded("Overloaded: others use this idempotency key at the same time")

    def holds(self, scope: str) -> bool:
        """Tell whether a key seems to be held: a request under it attaches, most likely."""
        held = self._claims.held(scope)
        return scope in self._claiming or (held is not None and not self._claims.expired(held))

    async def stop(self) -> None:
        """Send no events again any more."""
        for task in tuple(self._resending.values()):
            task.cancel()
        await asyncio.gather(*self._resending.values(), return_exceptions=True)

    async def _start(self, request: KeyedRequest) -> LiveReply | None:
        """Claim the key and send the event; None where another claim won.

        The event goes out only after the claim was read back as the winner.
        """
        self._claims.require_room(request.request_class)
        # From here to `follow` nothing is awaited: no record can pass between floor and follow.
        ticket = self._submission.ticket(
            request.canonical,
            request.prompt_token_ids,
            request.request_id,
            keyed=True,
            resumable=True,
        )
        event = self._draft(request, request.identity, ticket)
        claim = self._claim_of(request, event)
        followed = Followed(request=event)
        self._submission.follow(followed)
        claiming = self._claiming[request.scope] = asyncio.Event()
        won = False
        try:
            value = await self._submission.encode(event)  # else nothing must be claimed
            won = await self._claims.claim(claim)
        finally:
            del self._claiming[request.scope]
            claiming.set()
            if not won:
                self._submission.forget(followed)
        if not won:
            return None
        followed.on_end = lambda ended: self._claims.settle(claim, ended)
        reply = self._submission.open(followed)
        try:
            await self._submission.send(event, value)
            followed.sent()
        except EventTooLarge:
            self._closer.close(followed, CloseReason.FAILED, "the log refused the request")
            await reply.release()
            raise
        except LogError:
            self._resend(followed, event)  # it may have landed, or will; copies are harmless
        except asyncio.CancelledError:
            await reply.release()
            raise
        return reply

    async def _attach(self, request: KeyedRequest, held: Held) -> LiveReply | None:
        """Follow the reply of the claim that holds the key; None where the key was freed instead.

        Raises: KeyReused where the body differs.
        """
        claim = held.claim
        if claim.fingerprint != request.fingerprint:
            raise KeyReused("this idempotency key was used with another request")
        event = self._draft(request, replace(request.identity, key_id=claim.key_id), _ticket(claim))
        followed = await self._tails.find(
            claim.request_id, claim.locator, lambda _: event, done=held.done
        )
        if followed.on_end is None:
            followed.on_end = lambda ended: self._claims.settle(claim, ended)
            if followed.fold.end is not None and held.done is None:
                self._claims.settle(claim, followed)
        await self._end_if_late(followed)
        if is_void(followed.fold):
            await self._claims.release(claim)
            return None
        reply = self._submission.open(followed, self._tails.tail_of(claim.locator))
        same_version = claim.model_version == self._submission.model.model_version
        if followed.fold.starts == 0 and followed.fold.end is None and same_version:
            self._resend(followed, event)  # to another version's lanes it must never go
        return reply

    async def _end_if_late(self, followed: Followed) -> None:
        """Close what can never start any more, and wait (bounded) for its end in the log."""
        late_ms = followed.request.admit_by_ms + limits.LATE_MARGIN_MS
        if followed.fold.starts or followed.fold.end or self._clock.now_ms() < late_ms:
            return
        self._closer.close(followed, CloseReason.LATE)
        try:
            async with asyncio.timeout(limits.CLOSE_READ_BACK_MS / 1000):
                await followed.ended.wait()
        except TimeoutError:
            raise Overloaded("Overloaded: the end of an earlier try cannot be confirmed") from None

    def _resend(self, followed: Followed, event: RequestAccepted) -> None:
        """See to it that the event arrives, by copies under the same ids, if need be."""
        if event.request_id not in self._resending:
            task = asyncio.create_task(self._keep_sending(followed, event))
            self._resending[event.request_id] = task
            task.add_done_callback(lambda _: self._resending.pop(event.request_id, None))

    async def _keep_sending(self, followed: Followed, event: RequestAccepted) -> None:
        value = await self._submission.encode(event)
        pause_ms = limits.RESEND_AFTER_MS
        while self._clock.now_ms() + pause_ms < event.admit_by_ms:
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await followed.ended.wait()
                return
            except TimeoutError:
                pass
            if followed.fold.starts or not followed.mailboxes:
                return
            try:
                await self._submission.send(event, value)
            except (LogError, EventTooLarge):
                pass  # the next copy follows
            pause_ms *= 2

    def _draft(self, request: KeyedRequest, identity: Identity, ticket: Ticket) -> RequestAccepted:
        model = self._submission.model
        return draft(
            request.canonical,
            request.prompt_token_ids,
            identity,
            model,
            ticket,
            request.form,
            request.request_class,
        )

    def _claim_of(self, request: KeyedRequest, event: RequestAccepted) -> KeyClaimed:
        return KeyClaimed(
            scope=request.scope,
            nonce=self._entropy.uuid(),
            fingerprint=request.fingerprint,
            request_id=event.request_id,
            locator=event.locator,
            lane=event.lane,
            seed=event.seed,
            created_ms=event.header.created_ms,
            admit_by_ms=event.admit_by_ms,
            deadline_ms=event.deadline_ms,
            gateway=event.gateway,
            key_id=event.identity.key_id,
            model_version=event.placement.model_version,
        )


def _ticket(claim: KeyClaimed) -> Ticket:
    """Return what a claim fixed, for one more copy of its event."""
    return Ticket(
        request_id=RequestId(claim.request_id),
        locator=claim.locator,
        lane=claim.lane,
        seed=claim.seed,
        created_ms=claim.created_ms,
        admit_by_ms=claim.admit_by_ms,
        deadline_ms=claim.deadline_ms,
        gateway=claim.gateway,
        keyed=True,
        resumable=True,
    )
