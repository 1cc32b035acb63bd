"""Calls with an idempotency key on the memory log, for the gateway's tests."""

import asyncio
from dataclasses import dataclass, field

from gateway.idempotency import fingerprint_of, scope_of
from gateway.keyed import KeyedReply, KeyedRequest
from infra.memory import NoFaults, SendFate
from infra.ports import TopicPartition
from infra.system import SystemEntropy
from schemas.codec import decode
from schemas.idempotency import IdempotencyRecord
from schemas.ids import RequestId
from schemas.replies import StopReason
from schemas.requests import RequestAccepted
from schemas.topics import IDEMPOTENCY, idempotency_partition
from tests.gateway_platform import (
    IDENTITY,
    FakeWorker,
    Platform,
    canonical,
    read_to_end,
)

HELLO = [72, 105, 33]
SCOPE = scope_of("acme", "default", "k")


@dataclass
class SendFates(NoFaults):
    """Gives the first sends of named writers the fates that a test chooses."""

    fates: dict[str, list[SendFate]] = field(default_factory=dict)

    def send(self, writer: str, place: TopicPartition, value: bytes) -> SendFate:
        """Take the writer's next fate, or deliver."""
        left = self.fates.get(writer)
        return left.pop(0) if left else SendFate()


def keyed_request(body: str = "hi", *, only_resume: bool = False) -> KeyedRequest:
    """Return one call under the key `k`."""
    return KeyedRequest(
        scope=SCOPE,
        fingerprint=fingerprint_of("POST", "/v1/messages", "v", body),
        canonical=canonical(),
        prompt_token_ids=[1, 2],
        identity=IDENTITY,
        request_id=RequestId(SystemEntropy().uuid()),
        only_resume=only_resume,
    )


async def call(p: Platform, gateway: int = 0) -> KeyedReply:
    """Send the call at a gateway."""
    return await p.gateways[gateway].keyed.submit(keyed_request())


async def answer(p: Platform, gateway: int = 0) -> tuple[list[int], str, bool]:
    """Send the call and read the reply to its end: tokens, id, replayed."""
    keyed = await call(p, gateway)
    tokens = await read_to_end(keyed.reply)
    await keyed.reply.release()
    return tokens, keyed.reply.request.request_id, keyed.replayed


async def said_slowly(worker: FakeWorker, request: RequestAccepted) -> None:
    """Say the three tokens a second apart."""
    await worker.start(request)
    for token in HELLO[:2]:
        await asyncio.sleep(1)
        await worker.say(request, token)
    await asyncio.sleep(1)
    await worker.say(request, HELLO[2], stop=StopReason.END)


def facts(p: Platform) -> list[IdempotencyRecord]:
    """Return what stands in the key's partition."""
    place = TopicPartition(IDEMPOTENCY, idempotency_partition(SCOPE))
    log = p.broker.partition(place)
    return [decode(record.value, IdempotencyRecord) for record in log.read(0, 10_000)]


def claimed_ids(p: Platform) -> set[str]:
    """Return the request ids that any claim named."""
    return {record.claimed.request_id for record in facts(p) if record.claimed is not None}
