"""The gateway's parts behind HTTP, put together: what submits, follows, claims, resumes and closes.

Owns only who knows whom. The assembly gives it real adapters, tests and the simulator the memory
log's. `run` is everything that has to run in the background.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gateway.claim_tail import ClaimTail
from gateway.claims import Claims
from gateway.closing import Closer
from gateway.drafting import ServedModel
from gateway.keyed import Keyed
from gateway.orphans import Orphans
from gateway.reader import ReplyReader
from gateway.reply_tails import ReplyTails
from gateway.rereading import OpenReader, RereadingPool
from gateway.submission import Submission
from infra.control import Bury, ControlView
from infra.ports import Clock, Entropy, LogReader, LogWriter
from schemas import limits
from schemas.operations import ProcessReported

__all__ = ["Parts", "Wiring", "build_parts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The adapters and settings of one gateway."""

    clock: Clock
    entropy: Entropy
    control: ControlView
    live_workers: Callable[[], tuple[ProcessReported, ...]]
    partition: int
    """The reply partition that this gateway prefers."""
    reply_reader: LogReader
    claim_reader: LogReader
    open_reader: OpenReader
    requests: LogWriter
    closes: LogWriter
    claims: LogWriter
    gateway: str
    """This process's incarnation."""
    model: ServedModel
    bury: Bury | None = None
    inflight_max: int = limits.GATEWAY_INFLIGHT_MAX
    log_silent_s: Callable[[], float] = lambda: 0.0
    """Returns for how long the log has not answered."""
    grace_ms: int = limits.RESUMABLE_GRACE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """All of it; the reply reader and the claim tail are run by their maker, `run` by anybody."""

    replies: ReplyReader
    tails: ReplyTails
    closer: Closer
    orphans: Orphans
    submission: Submission
    claim_tail: ClaimTail
    claims: Claims
    keyed: Keyed

    async def run(self) -> None:
        """Close what nobody wants any more and idle tails, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.orphans.run())
            group.create_task(self.tails.run())

    async def stop(self, timeout_s: float) -> None:
        """Finish closes and claims within a bound, then let go of the rest."""
        await self.keyed.stop()
        await self.closer.stop(timeout_s)
        await self.claims.stop(timeout_s)
        await self.tails.stop()


def build_parts(wiring: Wiring) -> Parts:
    """Return the parts over these adapters."""
    replies = ReplyReader(reader=wiring.reply_reader, partition=wiring.partition, bury=wiring.bury)
    rereadings = RereadingPool(wiring.open_reader)
    tails = ReplyTails(
        own=replies, open_reader=wiring.open_reader, rereadings=rereadings, clock=wiring.clock
    )
    closer = Closer(writer=wiring.closes, clock=wiring.clock, reader=tails, by=wiring.gateway)

    def on_resumed(request_id: str, by: str) -> None:
        if by != wiring.gateway:
            orphans.resumed(request_id)

    claim_tail = ClaimTail(
        reader=wiring.claim_reader,
        clock=wiring.clock,
        on_resumed=on_resumed,
        bury=wiring.bury,
    )
    claimed = Claims(writer=wiring.claims, clock=wiring.clock, tail=claim_tail)
    orphans = Orphans(
        clock=wiring.clock,
        closer=closer,
        forget=tails.forget,
        announce=lambda request_id: claimed.announce(request_id, wiring.gateway),
        grace_ms=wiring.grace_ms,
    )
    submission = Submission(
        clock=wiring.clock,
        entropy=wiring.entropy,
        control=wiring.control,
        live_workers=wiring.live_workers,
        reader=replies,
        requests=wiring.requests,
        closer=closer,
        rereadings=rereadings,
        gateway=wiring.gateway,
        model=wiring.model,
        orphans=orphans,
        inflight_max=wiring.inflight_max,
        log_silent_s=wiring.log_silent_s,
    )
    keyed = Keyed(
        clock=wiring.clock,
        entropy=wiring.entropy,
        submission=submission,
        claims=claimed,
        tails=tails,
        closer=closer,
    )
    return Parts(
        replies=replies,
        tails=tails,
        closer=closer,
        orphans=orphans,
        submission=submission,
        claim_tail=claim_tail,
        claims=claimed,
        keyed=keyed,
    )
