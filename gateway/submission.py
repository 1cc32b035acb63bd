"""Submitting a request: from the canonical form to an event on a lane and a reply to follow.

Owns the decisions between "the request is well-formed" and "its event is acknowledged": length,
ids, locator, lane, times and bounds, and what a send of unknown outcome means. Speaks no HTTP and
makes no tokens, so that the simulator runs it as it is. Called by the HTTP handlers.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.closing import Closer
from gateway.errors import EventTooLarge, Overloaded, ReplyBroken
from gateway.live_reply import LiveReply
from gateway.mailbox import Mailbox
from gateway.reader import Followed, ReplyReader
from gateway.rereading import RereadingPool
from gateway.routing import lane_of, open_lanes
from infra.control import ControlView
from infra.errors import SendRefused, SendUnknown
from infra.ports import Clock, Entropy, LogWriter
from schemas import limits
from schemas.codec import encode
from schemas.dialects.canonical import CanonicalRequest, InvalidRequest
from schemas.ids import Locator, RequestId
from schemas.operations import ProcessReported
from schemas.replies import CloseReason
from schemas.requests import Identity, Placement, ReplyHeader, RequestAccepted, Sampling
from schemas.topics import REPLIES, requests_topic

__all__ = ["ServedModel", "Submission", "token_budget"]

_SEED_BITS = 63
"""Avro's long and torch's generators take a signed 64-bit seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The one model of a pool, as requests name it and as workers serve it."""

    alias: str
    """The id that users send and see."""
    model_version: str
    pool: str
    context_tokens: int
    admit_within_ms: int = limits.ADMIT_WITHIN_MS
    deadline_ms: int = limits.DEADLINE_MS


class Submission:
    """Sends requests and hands out their replies."""

    def __init__(
        self,
        *,
        clock: Clock,
        entropy: Entropy,
        control: ControlView,
        live_workers: Callable[[], Sequence[ProcessReported]],
        reader: ReplyReader,
        requests: LogWriter,
        closer: Closer,
        rereadings: RereadingPool,
        gateway: str,
        model: ServedModel,
        inflight_max: int = limits.GATEWAY_INFLIGHT_MAX,
    ) -> None:
        """Take the parts; `live_workers` returns the pool's (`FleetView.live("worker", pool)`)."""
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
        self._inflight_max = inflight_max
        self._topic = requests_topic(model.pool)
        self._open: set[LiveReply] = set()
        self._draining = False

    @property
    def open_count(self) -> int:
        """How many replies have a consumer now."""
        return len(self._open)

    async def submit(
        self,
        canonical: CanonicalRequest,
        prompt_token_ids: Sequence[int],
        identity: Identity,
        request_id: RequestId | None = None,
    ) -> LiveReply:
        """Send a request and return its reply, already followed from its floor on.

        Raises: InvalidRequest (too long a prompt), Overloaded, EventTooLarge: nothing was sent.
            ReplyBroken where the send's outcome was unknown; the id was closed first.
        """
        max_tokens, clipped = token_budget(
            canonical, len(prompt_token_ids), self._model.context_tokens
        )
        incarnation, lanes = self._require_room()
        # From here to `follow` nothing is awaited: no record can pass between floor and follow.
        now_ms = self._clock.now_ms()
        request = RequestAccepted(
            request_id=request_id or self._entropy.uuid(),
            locator=Locator(
                cell=0,
                incarnation=incarnation,
                partition=self._reader.partition,
                floor=self._reader.next_offset,
            ),
            lane=lane_of(prompt_token_ids, lanes),
            admit_by_ms=now_ms + self._model.admit_within_ms,
            deadline_ms=now_ms + self._model.deadline_ms,
            gateway=self._gateway,
            seed=self._entropy.bits(_SEED_BITS) if canonical.seed is None else canonical.seed,
            prompt_token_ids=tuple(prompt_token_ids),
            sampling=_sampling(canonical, max_tokens),
            header=_header(canonical, len(prompt_token_ids), max_tokens, clipped, now_ms),
            identity=identity,
            placement=Placement(
                alias=canonical.model,
                model=self._model.alias,
                model_version=self._model.model_version,
                pool=self._model.pool,
            ),
        )
        value = encode(request)
        if len(value) > limits.EVENT_BYTES_MAX:
            raise EventTooLarge(
                f"request takes {len(value)} bytes on the log, at most {limits.EVENT_BYTES_MAX}"
            )
        followed = Followed(request=request, mailbox=Mailbox(limits.MAILBOX_ENTRIES_MAX))
        self._reader.follow(followed)
        reply = LiveReply(
            followed=followed,
            reader=self._reader,
            closer=self._closer,
            rereadings=self._rereadings,
            clock=self._clock,
            on_release=self._open.discard,
        )
        self._open.add(reply)
        await self._send(followed, reply, value)
        return reply

    def drain(self) -> None:
        """Refuse new requests from now on; open replies run on."""
        self._draining = True

    def close_all(self, message: str) -> None:
        """Close every open reply as failed: their clients get an error, never a clean end."""
        for reply in tuple(self._open):
            reply.close(CloseReason.FAILED, message)

    def _require_room(self) -> tuple[int, tuple[int, ...]]:
        """Return the reply topic's incarnation and the open lanes. Raises Overloaded."""
        incarnation = self._control.incarnation(REPLIES)
        if self._draining:
            raise Overloaded("Overloaded: this gateway is shutting down")
        if incarnation is None or not self._reader.started:
            raise Overloaded("Overloaded: the platform is starting")
        if max(len(self._open), self._reader.count) >= self._inflight_max:
            raise Overloaded("Overloaded: too many requests in flight at this gateway")
        lanes = open_lanes(self._live_workers())
        if not lanes:
            raise Overloaded(f"Overloaded: no worker serves {self._model.alias} yet")
        return incarnation, lanes

    async def _send(self, followed: Followed, reply: LiveReply, value: bytes) -> None:
        """Append the request; whatever goes wrong, the reply is closed or was never sent."""
        request = followed.request
        try:
            await self._requests.send(self._topic, request.lane, value)
        except SendRefused as error:
            self._reader.forget(request.request_id)
            self._open.discard(reply)
            raise EventTooLarge(f"the log refused the request: {error}") from error
        except SendUnknown as error:
            await self._close_unknown(followed, reply)
            if followed.fold.end is None or followed.fold.end.terminal is None:
                await reply.release()
                raise ReplyBroken(
                    CloseReason.FAILED, "The request could not be handed over; it was closed"
                ) from error
        except asyncio.CancelledError:
            await reply.release()  # closes it: the send may have landed
            raise

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


def token_budget(
    canonical: CanonicalRequest, prompt_tokens: int, context_tokens: int
) -> tuple[int, bool]:
    """Return how many tokens may be generated, and whether the context window cut the wish.

    Raises: InvalidRequest where the prompt alone leaves no room for one token.
    """
    left = context_tokens - prompt_tokens
    if left < 1:
        raise prompt_too_long(str(prompt_tokens), context_tokens)
    wished = canonical.max_tokens
    if wished is None:
        return min(left, limits.REPLY_TOKENS_MAX), False
    return min(wished, left, limits.REPLY_TOKENS_MAX), wished > left


def prompt_too_long(shown_tokens: str, context_tokens: int) -> InvalidRequest:
    """Return the error of a prompt that leaves no room for a reply."""
    # One token of the window is kept for the reply: a prompt that fills it has none to answer.
    text = f"prompt is too long: {shown_tokens} tokens > {context_tokens - 1} maximum"
    return InvalidRequest("messages", text, message=text, code="context_length_exceeded")


def _sampling(canonical: CanonicalRequest, max_tokens: int) -> Sampling:
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=min(canonical.min_tokens, max_tokens),
        temperature=canonical.temperature,
        top_p=canonical.top_p,
        top_k=canonical.top_k,
        min_p=canonical.min_p,
        presence_penalty=canonical.presence_penalty,
        frequency_penalty=canonical.frequency_penalty,
        repetition_penalty=canonical.repetition_penalty,
        stop=canonical.stop,
        ignore_eos=canonical.ignore_eos,
    )


def _header(
    canonical: CanonicalRequest, prompt_tokens: int, max_tokens: int, clipped: bool, now_ms: int
) -> ReplyHeader:
    return ReplyHeader(
        dialect=canonical.dialect,
        dialect_version=canonical.dialect_version,
        stream=canonical.stream,
        include_usage=canonical.include_usage,
        model_shown=canonical.model,
        stop=canonical.stop,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        clipped=clipped,
        created_ms=now_ms,
    )
