"""A simulated gateway process: the product's parts without HTTP, and a simulated metering sink."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

from msgspec.structs import replace

from gateway.closing import Closer
from gateway.deps import Deps
from gateway.keyed import Keyed
from gateway.parts import Wiring, build_parts
from gateway.reply_tails import ReplyTails
from gateway.submission import ServedModel, Submission
from infra.control import ControlView
from infra.dead_letters import DeadLetters
from infra.fleet import FleetReporter, FleetTail, FleetView
from infra.keys import hash_secret
from infra.metrics import Metrics
from infra.ports import Appended, Clock, LogReader, LogWriter
from schemas import limits
from schemas.codec import decode, encode
from schemas.operations import (
    ControlRecord,
    KeyCreated,
    ProcessReported,
    ProcessState,
    TopicCreated,
)
from schemas.requests import RequestAccepted
from schemas.topics import REPLIES
from streams.metering.sink import GROUP, MeteringDeps, MeteringSink
from tests.assembler_cases import ByteDecoder
from tests.sim.clocks import SimClock, SimEntropy
from tests.sim.faults import SEND_BOUND_MS, SESSION_MS
from tests.sim.loop import Process
from tests.sim.platform import ALIAS, CONTEXT_TOKENS, POOL, WORKSPACE, Life, Platform
from tests.sim.silence import SilentMetrics

ORGS = 5
ADMIT_WITHIN_MS = 3_000
DEADLINE_MS = 15_000
GRACE_MS = 2_000
KEEPALIVE_MS = 1_000
SLOW_CLIENT_MS = 4_000
LOCATOR_KEY = b"simulated locators"


def secret_of(org: str) -> str:
    """Return the API key of an org."""
    return f"sk-ms-{org}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """The part of `gateway.prompts.Prompts` that a delivery touches."""

    decoder: type[ByteDecoder] = ByteDecoder

    def token_text(self, token_id: int) -> bytes:
        """Return no bytes: no request here asks for log probabilities."""
        return b""

    def text_of(self, token_ids: Sequence[int]) -> str | None:
        """Return what a decoder releases over all of them."""
        return "".join(map(self.decoder().step, token_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayDeps:
    """The part of `gateway.deps.Deps` that replies on their way to clients touch."""

    clock: Clock
    metrics: Metrics
    control: ControlView
    submission: Submission
    keyed: Keyed
    tails: ReplyTails
    closer: Closer
    model: ServedModel
    prompts: Prompts = Prompts()
    locator_key: bytes = LOCATOR_KEY
    keepalive_ms: int = KEEPALIVE_MS
    slow_client_ms: int = SLOW_CLIENT_MS

    def unready(self) -> str | None:
        """Let every call in: those that nobody can serve are refused by the parts."""
        return None


class SimGateway:
    """One incarnation of one gateway."""

    def __init__(self, platform: Platform, name: str, number: int, clock: SimClock) -> None:
        self.name = name
        self.platform = platform
        entropy = SimEntropy(f"{platform.options.seed}/{name}/{number}")
        life = self.life = Life(Process(name), clock, f"{name}/{entropy.uuid()}")
        broker = platform.broker
        self._view = FleetView()
        self._fleet_tail = FleetTail(life.keep(broker.reader(f"{name}:fleet")), self._view)
        self._status = self._writer("status")

        async def open_reader() -> LogReader:
            await asyncio.sleep(0)
            return life.keep(broker.reader(f"{name}:reread"))

        requests: LogWriter = self._writer("requests")
        if platform.options.has("price-change"):
            requests = Pricing(requests, life.incarnation)
        wiring = Wiring(
            clock=clock,
            entropy=entropy,
            control=control(),
            live_workers=lambda: self._view.live("worker", POOL),
            partition=int(name.rpartition("-")[2]),
            reply_reader=life.keep(broker.reader(f"{name}:replies")),
            claim_reader=life.keep(broker.reader(f"{name}:keys")),
            open_reader=open_reader,
            requests=requests,
            closes=self._writer("closes"),
            claims=self._writer("claims"),
            gateway=life.incarnation,
            model=ServedModel(
                alias=ALIAS,
                model_version="v1",
                pool=POOL,
                context_tokens=CONTEXT_TOKENS,
                admit_within_ms=ADMIT_WITHIN_MS,
                deadline_ms=DEADLINE_MS,
            ),
            inflight_max=limits.GATEWAY_INFLIGHT_MAX,
            grace_ms=GRACE_MS,
        )
        self.parts = build_parts(wiring)
        self.deps = self._deps(wiring)

    def unready(self) -> str | None:
        """Return why calls cannot be served yet, or None."""
        return None if self.parts.claim_tail.caught_up else "keys are not read yet"

    def start(self) -> asyncio.Task[None]:
        """Run its tasks; return the one whose end would be the process's end."""
        loop, process = self.platform.loop, self.life.process
        loop.spawn(process, FleetReporter(self._status, self._report).run())
        loop.spawn(process, self._fleet_tail.run())
        loop.spawn(process, self.parts.claim_tail.run())
        loop.spawn(process, self.parts.run())
        return loop.spawn(process, self.parts.replies.run())

    def kill(self) -> None:
        """Die here and now; clients see their connections reset."""
        for connection in self.life.connections:
            connection.kill()
        self.platform.loop.kill(self.life.process)

    def _writer(self, purpose: str) -> LogWriter:
        broker, name = self.platform.broker, f"{self.name}:{purpose}"
        return self.life.keep(broker.writer(name, idempotent=False, send_timeout_ms=SEND_BOUND_MS))

    def _deps(self, wiring: Wiring) -> Deps:
        parts = self.parts
        deps = GatewayDeps(
            clock=wiring.clock,
            metrics=SilentMetrics(),
            control=wiring.control,
            submission=parts.submission,
            keyed=parts.keyed,
            tails=parts.tails,
            closer=parts.closer,
            model=wiring.model,
        )
        return cast(Deps, deps)

    def _report(self) -> ProcessReported:
        return ProcessReported(
            process=self.name,
            incarnation=self.life.incarnation,
            kind="gateway",
            state=ProcessState.SERVING,
            pool=POOL,
            running=self.parts.submission.open_count,
        )


class Pricing:
    """Stamps each event with the price book that its gateway knows: copies may differ in it.

    Implements what a submission needs of `infra.ports.LogWriter`.
    """

    def __init__(self, writer: LogWriter, version: str) -> None:
        self._writer = writer
        self._version = version

    async def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> Appended:
        """Stamp and send."""
        request = decode(value, RequestAccepted)
        placement = replace(request.placement, price_book_version=self._version)
        stamped = encode(replace(request, placement=placement))
        return await self._writer.send(topic, partition, stamped, key=key, headers=headers)

    async def enqueue(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> "asyncio.Future[Appended]":
        """Send as it is: events are not queued."""
        return await self._writer.enqueue(topic, partition, value, key=key, headers=headers)

    async def close(self) -> None:
        """Close the writer behind."""
        await self._writer.close()


@cache
def control() -> ControlView:
    """Return what `control.v1` says in every run."""
    view = ControlView()
    view.apply(
        ControlRecord(topic_created=TopicCreated(topic=REPLIES, partitions=4, incarnation=7))
    )
    for number in range(ORGS):
        org = f"org-{number}"
        key = KeyCreated(
            key_id="key",
            secret_sha256=hash_secret(secret_of(org)),
            org=org,
            workspace=WORKSPACE,
            tier="default",
            admin=False,
            created_ms=0,
        )
        view.apply(ControlRecord(key_created=key))
    return view


class SimSink:
    """One incarnation of the metering process."""

    def __init__(self, platform: Platform, name: str, number: int, clock: SimClock) -> None:
        self.name = name
        self.platform = platform
        life = self.life = Life(Process(name), clock, f"{name}/{number}")
        broker = platform.broker
        letters = life.keep(broker.writer(f"{name}:status", send_timeout_ms=SEND_BOUND_MS))
        self.sink = MeteringSink(
            MeteringDeps(
                group=life.keep(broker.group_reader(GROUP, name, session_timeout_ms=SESSION_MS)),
                store=platform.store,
                dead_letters=DeadLetters(letters, clock, name),
                clock=clock,
                metrics=SilentMetrics(),
            )
        )

    def start(self) -> asyncio.Task[None]:
        """Join and run; return the task whose end would be the process's end."""
        return self.platform.loop.spawn(self.life.process, self._run())

    def kill(self) -> None:
        """Die here and now."""
        for connection in self.life.connections:
            connection.kill()
        self.platform.loop.kill(self.life.process)

    async def _run(self) -> None:
        await self.sink.join()
        await self.sink.run()
