"""Submitting a request: from the canonical form to an event on a lane and a reply to follow.

Owns the decisions between "the request is well-formed" and "its event is acknowledged": room, ids,
locator, lane, times and bounds, and what a send of unknown outcome means. Speaks no HTTP and makes
no tokens, so that the simulator runs it as it is. Called by the HTTP handlers; requests with a key
pass through `keyed.py`.
"""

import asyncio
from collections.abc import Callable, Sequence

from gateway.closing import Closer
from gateway.drafting import PLAIN, ReplyForm, ServedModel, Ticket, draft, token_budget
from gateway.errors import EventTooLarge, HandoverFailed, LogAway, Overloaded
from gateway.live_reply import LiveReply
from gateway.orphans import Orphans
from gateway.reader import Followed, ReplyReader
from gateway.rereading import RereadingPool
from gateway.routing import lane_of, open_lanes
from infra.control import ControlView
from infra.errors import SendRefused, SendUnknown
from infra.ports import Clock, Entropy, LogWriter
from schemas import limits
from schemas.codec import encode
from schemas.dialects.canonical import CanonicalRequest
from schemas.ids import Locator, RequestId
from schemas.operations import ProcessReported
from schemas.replies import CloseReason
from schemas.requests import Identity, RequestAccepted
from schemas.topics import REPLIES, requests_topic

__all__ = ["ServedModel", "Submission", "token_budget"]

_SEED_BITS = 63
"""Avro's long and torch's generators take a signed 64-bit seed."""
_INLINE_TOKENS_MAX = 16_384
"""Longer prompts are encoded in a thread: one of this length takes 1 ms."""
_GUESTS_PER_REQUEST_MAX = 2
"""Consumers of replies that run already start no work, so that more of them have room."""


class Submission:
    """Sends requests and hands out their replies."""

    def __init__(
        self,
        *,
        clock: Clock,
        entropy: Entropy,
        control: ControlView,
        live_workers: Callable[[], tuple[ProcessReported, ...]],
        reader: ReplyReader,
        requests: LogWriter,
        closer: Closer,
        rereadings: RereadingPool,
        gateway: str,
        model: ServedModel,
        orphans: Orphans | None = None,
        inflight_max: int = limits.GATEWAY_INFLIGHT_MAX,
        log_silent_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Take the parts.

        Args: `live_workers` returns the pool's (`FleetView.live("worker", pool)`); `log_silent_s`
        for how long the log has not answered.
        """
        self._clock = clock
        self._entropy = entropy
        self._control = control
        self._live_workers = live_workers
        self._reader = reader
        self._requests = requests
        self._closer = closer
        self._rereadings = rereadings
        self._gateway = gateway
        self._model = model
        self._orphans = orphans or Orphans(clock=clock, closer=closer)
        self._inflight_max = inflight_max
        self._log_silent_s = log_silent_s
        self._topic = requests_topic(model.pool)
        self._open: set[LiveReply] = set()
        self._draining = False
        self._lanes: tuple[tuple[ProcessReported, ...], tuple[int, ...]] = ((), ())
        """The workers as they were looked at last, and the lanes that they leave open."""

    @property
    def open_count(self) -> int:
        """How many consumers replies have now."""
        return len(self._open)

    @property
    def model(self) -> ServedModel:
        """The model that requests go to."""
        return self._model

    async def submit(
        self,
        canonical: CanonicalRequest,
        prompt_token_ids: Sequence[int],
        identity: Identity,
        request_id: RequestId | None = None,
        *,
        resumable: bool = False,
        form: ReplyForm = PLAIN,
    ) -> LiveReply:
        """Send a request and return its reply, already followed from its floor on.

        Raises: InvalidRequest (too long a prompt), Overloaded, LogAway, EventTooLarge: nothing was
            sent. HandoverFailed where the send's outcome was unknown; the id was closed first.
        """
        # From here to `follow` nothing is awaited: no record can pass between floor and follow.
        ticket = self.ticket(canonical, prompt_token_ids, request_id, resumable=resumable)
        request = draft(canonical, prompt_token_ids, identity, self._model, ticket, form)
        followed = Followed(request=request)
        self._reader.follow(followed)
        reply = self.open(followed, self._reader)
        try:
            await self.send(request, await self.encode(request))
            followed.sent()
        except EventTooLarge:
            self._reader.forget(request.request_id)
            self._open.discard(reply)
            raise
        except SendUnknown as error:
            await self._close_unknown(followed, reply)
            if followed.fold.end is None or followed.fold.end.terminal is None:
                await reply.release()
                raise HandoverFailed(
                    CloseReason.FAILED, "The request could not be handed over; it was closed"
                ) from error
        except asyncio.CancelledError:
            self._closer.close(followed, CloseReason.CANCELLED)  # the send may have landed
            await reply.release()
            raise
        return reply

    def ticket(
        self,
        canonical: CanonicalRequest,
        prompt_token_ids: Sequence[int],
        request_id: RequestId | None,
        *,
        keyed: bool = False,
        resumable: bool = False,
    ) -> Ticket:
        """Return ids, place and times of a new request; its floor is the tail's position now.

        Raises: Overloaded, LogAway, InvalidRequest (too long a prompt).
        """
        token_budget(canonical, len(prompt_token_ids), self._model.context_tokens)
        incarnation, lanes = self._require_room()
        now_ms = self._clock.now_ms()
        return Ticket(
            request_id=request_id or RequestId(self._entropy.uuid()),
            locator=Locator(
                cell=0,
                incarnation=incarnation,
                partition=self._reader.partition,
                floor=self._reader.next_offset,
            ),
            lane=lane_of(prompt_token_ids, lanes),
            seed=self._entropy.bits(_SEED_BITS) if canonical.seed is None else canonical.seed,
            created_ms=now_ms,
            admit_by_ms=now_ms + self._model.admit_within_ms,
            deadline_ms=now_ms + self._model.deadline_ms,
            gateway=self._gateway,
            keyed=keyed,
            resumable=resumable,
        )

    async def encode(self, request: RequestAccepted) -> bytes:
        """Return the event's bytes, of a long prompt in a thread. Raises EventTooLarge."""
        if len(request.prompt_token_ids) <= _INLINE_TOKENS_MAX:
            value = encode(request)
        else:
            value = await asyncio.to_thread(encode, request)
        if len(value) > limits.EVENT_BYTES_MAX:
            raise EventTooLarge(
                f"request takes {len(value)} bytes on the log, at most {limits.EVENT_BYTES_MAX}"
            )
        return value

    async def send(self, request: RequestAccepted, value: bytes) -> None:
        """Append an event to its lane. Raises EventTooLarge, SendUnknown."""
        try:
            await self._requests.send(self._topic, request.lane, value)
        except SendRefused as error:
            raise EventTooLarge(f"the log refused the request: {error}") from error

    def follow(self, followed: Followed) -> None:
        """Follow a reply whose floor was taken just now, before its event is sent."""
        self._reader.follow(followed)

    def forget(self, followed: Followed) -> None:
        """Follow a reply no longer whose event was not sent."""
        self._reader.forget(followed.request.request_id)

    def open(self, followed: Followed, tail: ReplyReader | None = None) -> LiveReply:
        """Return a consumer of a reply, from its first token on; `tail` reads its partition.

        Raises: Overloaded where too many are open.
        """
        if len(self._open) >= _GUESTS_PER_REQUEST_MAX * self._inflight_max:
            self._orphans.left(followed)
            raise Overloaded("Overloaded: too many clients at this gateway")
        reply = LiveReply(
            followed=followed,
            mailbox=followed.subscribe(),
            reader=tail or self._reader,
            closer=self._closer,
            rereadings=self._rereadings,
            clock=self._clock,
            on_release=self._released,
        )
        self._open.add(reply)
        self._orphans.adopted(followed)
        return reply

    def drain(self) -> None:
        """Refuse new requests from now on; open replies run on."""
        self._draining = True

    def close_all(self, message: str) -> None:
        """Cut every open reply: clients are told to come back, and never get a clean end.

        Replies that can be resumed run on: their clients go on at another gateway.
        """
        for reply in tuple(self._open):
            if reply.request.keyed or reply.request.resumable or not reply.followed.owned:
                reply.detach(message)
            else:
                reply.cut(message)

    def _released(self, reply: LiveReply) -> None:
        if reply in self._open:
            self._open.discard(reply)
            self._orphans.left(reply.followed)

    def _require_room(self) -> tuple[int, tuple[int, ...]]:
        """Return the reply topic's incarnation and the open lanes. Raises Overloaded, LogAway."""
        incarnation = self._control.incarnation(REPLIES)
        if self._draining:
            raise Overloaded("Overloaded: this gateway is shutting down")
        if incarnation is None or not self._reader.started:
            raise Overloaded("Overloaded: the platform is starting")
        if max(len(self._open), self._reader.count) >= self._inflight_max:
            raise Overloaded("Overloaded: too many requests in flight at this gateway")
        if self._log_silent_s() > limits.LOG_SILENT_MS / 1000:
            raise LogAway("Service unavailable: the platform's log does not answer")
        lanes = self._open_lanes()
        if not lanes:
            raise Overloaded(f"Overloaded: no worker serves {self._model.alias} yet")
        return incarnation, lanes

    def _open_lanes(self) -> tuple[int, ...]:
        """Return the lanes that take new requests; they change when somebody reports."""
        workers = self._live_workers()
        if workers is not self._lanes[0]:
            self._lanes = (workers, open_lanes(workers))
        return self._lanes[1]

    async def _close_unknown(self, followed: Followed, reply: LiveReply) -> None:
        """Close a request whose send may have landed, and wait (bounded) for its end in the log."""
        reply.close(CloseReason.FAILED, "the request's send had an unknown outcome")
        try:
            async with asyncio.timeout(limits.CLOSE_READ_BACK_MS / 1000):
                await followed.ended.wait()
        except TimeoutError:
            pass  # the closer goes on in the background, within its own bound
        except asyncio.CancelledError:
            await reply.release()
            raise
