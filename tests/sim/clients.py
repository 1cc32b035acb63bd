"""Simulated clients: each sends one request to one gateway and keeps what it was sent.

Drives the product's own delivery (`gateway.delivery`) through ASGI messages, as a client that may
read slowly or leave. Judges nothing but that no token was sent before the log accepted it.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from starlette.types import Message

from gateway.call import Call
from gateway.delivery import StreamedReply, WholeReply
from gateway.deps import Deps
from gateway.errors import ClientGone, Refused, ReplyBroken, show
from gateway.live_reply import LiveReply
from gateway.reader import Asked
from infra.metrics import Metrics
from infra.ports import Clock
from schemas.assembler import Assembler
from schemas.dialects.canonical import CanonicalMessage, CanonicalRequest
from schemas.ids import RequestId
from schemas.requests import Dialect, Identity
from tests.assembler_cases import ByteDecoder
from tests.sim.gateways import ALIAS, SimGateway
from tests.sim.options import Options
from tests.sim.platform import Platform
from tests.sim.silence import SilentMetrics

KEEPALIVE_MS = 1_000
SLOW_CLIENT_MS = 4_000
REPLY_ID = "reply"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryDeps:
    """The part of `gateway.deps.Deps` that a delivery touches."""

    clock: Clock
    metrics: Metrics
    keepalive_ms: int = KEEPALIVE_MS
    slow_client_ms: int = SLOW_CLIENT_MS


@dataclass(slots=True, kw_only=True)
class Client:
    """One client: what it asks, how it behaves, what it got."""

    request_id: RequestId
    canonical: CanonicalRequest
    prompt: tuple[int, ...]
    identity: Identity
    at_s: float
    gateway: str
    leaves_after_s: float | None
    leaves_after_sends: int | None
    pause_s: float
    """It waits this long in every read."""
    answer: str | None = None
    """None while it waits: complete, error, refused, gone, reset."""
    status: int | None = None
    body: list[bytes] = field(default_factory=list)
    request: Asked | None = None
    reply: LiveReply | None = None
    overflows: int = 0


def draw_clients(options: Options) -> list[Client]:
    """Return the clients of a run, by time of arrival."""
    rng = random.Random(f"clients/{options.seed}")
    clients = [_draw(options, rng, index) for index in range(options.requests)]
    return sorted(clients, key=lambda client: client.at_s)


def _draw(options: Options, rng: random.Random, index: int) -> Client:
    leaves = options.has("disconnect") and rng.random() < 0.3
    slow = options.has("slow-client") and rng.random() < 0.4
    stream = rng.random() < 0.8
    return Client(
        request_id=RequestId(f"{index:08x}-0000-4000-8000-{rng.getrandbits(48):012x}"),
        canonical=CanonicalRequest(
            dialect=rng.choice((Dialect.ANTHROPIC, Dialect.OPENAI)),
            dialect_version="2023-06-01",
            model=ALIAS,
            messages=(CanonicalMessage(role="user", text="hi"),),
            max_tokens=rng.randint(1, options.max_tokens),
            stream=stream,
            include_usage=rng.random() < 0.5,
            stop=rng.choice(((), (), ("ab",), ("baa",), ("a", "é"))),
            min_tokens=rng.choice((0, 0, 1)),
            ignore_eos=rng.random() < 0.3,
        ),
        prompt=tuple(rng.randrange(256) for _ in range(rng.choice((3, 8, 40)))),
        identity=Identity(org=f"org-{rng.randrange(5)}", workspace="default", key_id="key"),
        at_s=0.05 + rng.random() * options.arrival_s,
        gateway=f"gateway-{rng.randrange(options.gateways)}",
        leaves_after_s=rng.choice((0.0, 0.02, 0.3, 2.0)) if leaves and rng.random() < 0.5 else None,
        leaves_after_sends=rng.choice((1, 2, 4)) if leaves else None,
        pause_s=rng.choice((0.02, 0.2, 1.0, 5.0)) if slow else 0.0,
    )


class Session:
    """One client's connection to a gateway."""

    def __init__(
        self,
        platform: Platform,
        client: Client,
        gateway: SimGateway,
        accepted: Callable[[str], int],
    ) -> None:
        self._platform = platform
        self._client = client
        self._gateway = gateway
        self._accepted = accepted
        self._gone = asyncio.Event()
        self._sends = 0

    async def run(self) -> None:
        """Ask, read, note the answer; runs as a task of the gateway's process."""
        client = self._client
        try:
            await self._exchange()
            client.answer = "complete"
        except Refused as error:
            client.answer, client.status = "refused", show(error).status
        except ReplyBroken as error:
            client.answer, client.status = "error", show(error).status
        except ClientGone:
            client.answer = "gone"
        except asyncio.CancelledError:
            client.answer = "reset"
            raise
        finally:
            if client.reply is not None:
                client.overflows = client.reply.overflows
            self._platform.events.note(
                self._platform.now_s(), f"client {client.request_id} {client.answer}"
            )

    async def _exchange(self) -> None:
        client = self._client
        if client.leaves_after_s is not None:
            self._platform.loop.call_later(client.leaves_after_s, self._gone.set)
        client.reply = await self._gateway.submission.submit(
            client.canonical, client.prompt, client.identity, client.request_id
        )
        client.request = client.reply.request
        call = Call(
            request_id=client.request_id,
            dialect=client.canonical.dialect,
            method="POST",
            path="/",
            began_s=self._platform.now_s(),
        )
        deps = DeliveryDeps(clock=self._gateway.life.clock, metrics=SilentMetrics())
        assembler = Assembler(client.request.header, REPLY_ID, ByteDecoder)
        form = StreamedReply if client.canonical.stream else WholeReply
        await form(call, cast(Deps, deps), client.reply, assembler)({}, self._receive, self._send)

    async def _receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        client = self._client
        if message["type"] == "http.response.start":
            client.status = message["status"]
            return
        await asyncio.sleep(client.pause_s)
        self._sends += 1
        body = bytes(message["body"])
        if client.canonical.stream:
            self._check_cursor(body)
        client.body.append(body)
        if client.leaves_after_sends == self._sends:
            self._gone.set()

    def _check_cursor(self, body: bytes) -> None:
        """No event may come before the log has accepted its tokens."""
        at = body.rfind(b"\nid: ")
        if at < 0 and not body.startswith(b"id: "):
            return
        cursor = body[at + 1 :].split(b"\n", 1)[0].removeprefix(b"id: ")
        tokens = int(cursor.split(b"-")[0])
        accepted = self._accepted(self._client.request_id)
        if tokens > accepted:
            self._platform.fail(
                f"I15: {self._client.request_id} was sent {tokens} tokens, {accepted} accepted"
            )


def numbered(body: list[bytes]) -> list[bytes]:
    """Return the events of a stream that belong to the reply: those with an id, less comments."""
    text = b"".join(line for line in b"".join(body).splitlines(keepends=True) if line[:1] != b":")
    frames = [frame.lstrip(b"\n") for frame in text.split(b"\n\n")]
    return [frame + b"\n\n" for frame in frames if frame.startswith(b"id: ") or b"\nid: " in frame]
