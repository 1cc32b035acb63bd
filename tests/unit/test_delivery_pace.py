"""How a delivery waits: a keep-alive that is nearly due must not become a busy loop."""

import asyncio
from dataclasses import dataclass
from typing import cast

from starlette.types import Message

from gateway.call import Call
from gateway.delivery import StreamedReply
from gateway.deps import Deps
from gateway.errors import ClientGone
from gateway.live_reply import LiveReply
from gateway.mailbox import Chunk
from schemas.assembler import Assembler
from schemas.ids import RequestId
from schemas.requests import Dialect
from tests.assembler_cases import OPENAI, ByteDecoder
from tests.sim.silence import SilentMetrics

EARLY_S = 0.0002
"""A timer may fire this much before its time."""


class Clock:
    """Time that moves only while somebody waits."""

    def __init__(self) -> None:
        self.seconds = 0.1234567

    def now_ms(self) -> int:
        """Return milliseconds."""
        return int(self.seconds * 1_000)

    def monotonic_s(self) -> float:
        """Return seconds."""
        return self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryDeps:
    """The part of `gateway.deps.Deps` that a delivery touches."""

    clock: Clock
    metrics: SilentMetrics
    keepalive_ms: int = 1_000
    slow_client_ms: int = 4_000


class SilentReply:
    """A reply without tokens, whose waits end a little early."""

    end = None
    overflows = 0
    accepted_count = 0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.takes = 0
        self.interrupted = False

    async def take(self, timeout_ms: int) -> list[Chunk]:
        """Wait in vain."""
        self.takes += 1
        self._clock.seconds += max(0.0, timeout_ms / 1_000 - EARLY_S)
        self.interrupted = self._clock.seconds > 5 or self.takes > 100
        return []

    def interrupt(self) -> None:
        """The client has gone; `take` sees to it here."""

    async def release(self) -> None:
        """Nothing to release."""


def test_a_wait_that_ends_early_is_not_repeated_in_a_busy_loop() -> None:
    """Each keep-alive takes its wait and at most one short one more, never a spin of zero waits."""
    clock = Clock()
    reply, sent = SilentReply(clock), list[bytes]()
    call = Call(
        request_id=RequestId("r"),
        shown_id="req_r",
        dialect=Dialect.OPENAI,
        method="POST",
        path="/",
        began_s=0.0,
    )
    deps = DeliveryDeps(clock=clock, metrics=SilentMetrics())
    assembler = Assembler(OPENAI, "reply", ByteDecoder)

    async def receive() -> Message:
        await asyncio.Event().wait()
        return {}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])

    async def scenario() -> None:
        form = StreamedReply(call, cast(Deps, deps), cast(LiveReply, reply), assembler)
        try:
            await form({}, receive, send)
        except ClientGone:
            pass  # the scenario ends by its client leaving

    asyncio.run(scenario())
    assert len(sent) == 4
    assert reply.takes <= 2 * len(sent) + 2
