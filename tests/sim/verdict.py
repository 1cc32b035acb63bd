"""The checks at the end of a run, when everything has healed: nothing missing, nothing extra."""

import random
from collections.abc import Mapping

from msgspec.structs import replace

from infra.ports import TopicPartition, UsageRow
from schemas import limits
from schemas.codec import decode
from schemas.fold import ReplyFold
from schemas.replies import CloseReason, ReplyRecord, fact_of
from schemas.topics import REPLIES, USAGE, requests_topic, workers_group
from schemas.usage import UsageRecorded, usage_of
from streams.metering.sink import GROUP
from tests.sim.answers import Answers
from tests.sim.checks import Checks
from tests.sim.clients import Client, Manner
from tests.sim.gateways import GRACE_MS
from tests.sim.platform import POOL
from tests.sim.views import wrong_fold, wrong_stop

STARTS_FREE = 2
CLOCK_S = 0.002
"""Clocks count whole milliseconds."""
HARMLESS = (
    "client",
    "clock",
    "crash.gateway",
    "crash.metering",
    "key",
    "mailbox",
    "pause.gateway",
    "pause.metering",
    "send.delay",
    "send.duplicate",
    "store",
)
"""Faults that lose no worker its lanes and no reply its facts."""


def unsettled(checks: Checks, clients: list[Client]) -> str | None:
    """Return what is still to come before the platform is at rest, or None (I12)."""
    judge, broker = checks.judge, checks.platform.broker
    for client in clients:
        if client.answer is None:
            return f"client {client.index} has no answer"
    for name in judge.requests:
        reply = judge.replies.get(name)
        if reply is None or not reply.ended:
            return f"request {name} has not ended"
        if name not in judge.usage:
            return f"request {name} has no usage"
    for group, topic in ((workers_group(POOL), requests_topic(POOL)), (GROUP, USAGE)):
        for log in broker.topic(topic).partitions:
            end = log.bounds().end
            if end and broker.groups[group].commits.get(log.place, 0) != end:
                return f"group {group} has not committed past {log.place} {end}"
    return None


async def judge_the_end(checks: Checks, clients: list[Client], faults: int) -> None:
    """Weigh a run that has settled. Raises Violation."""
    checks.on_tick()
    _check_ids(checks)
    _check_starts(checks, faults)
    _check_folds(checks)
    answers = Answers(checks.judge, checks.claims)
    for client in clients:
        name = client.request_id
        wrong = answers.wrong(client)
        if wrong is not None:
            checks.fail("I15", name, f"client {client.index} {wrong}")
        early = _cancelled_early(checks, client)
        if early is not None:
            checks.fail("I12", name, early)
        refused = client.visits[0].answer == "refused" and client.question.key is None
        if refused and name in checks.judge.requests:
            checks.fail("I17", name, "was refused and yet landed")
    await _check_store(checks)


def _cancelled_early(checks: Checks, client: Client) -> str | None:
    """A client that can resume has a grace time before its reply is given up."""
    reply, has = checks.judge.replies.get(client.request_id), checks.platform.options.has
    visit = client.visits[0]
    if client.manner is not Manner.RESUMABLE or reply is None or visit.answer != "gone":
        return None
    if reply.close is None or reply.close.reason is not CloseReason.CANCELLED:
        return None
    if reply.request_id in checks.cancels_asked or has("clock-skew") or has("clock-step"):
        return None
    waited_s = reply.ended_s - visit.ended_s
    if waited_s >= GRACE_MS / 1_000 - CLOCK_S:
        return None
    return f"was cancelled {waited_s:.3f} s after its client had left"


def _check_ids(checks: Checks) -> None:
    judge = checks.judge
    for name in judge.usage.keys() - judge.requests.keys():
        reply = judge.replies[name]
        if reply.close is None or reply.starts:
            checks.fail("I7", name, "has usage, its record never landed")
    for name, landed in judge.requests.items():
        reply = judge.replies[name]
        if landed.request.locator.floor > reply.first_offset:
            checks.fail("I11", name, "its floor lies above its first reply record")
        if landed.request.locator.partition != reply.partition:
            checks.fail("I11", name, "its reply lies in another partition")
        wrong = wrong_stop(reply, landed.request)
        if wrong is not None:
            checks.fail("I3", name, wrong)


def starting_faults(fired: Mapping[str, int]) -> int:
    """Return how many faults struck that can make a worker start a reply anew."""
    return sum(count for kind, count in fired.items() if not kind.startswith(HARMLESS))


def _check_starts(checks: Checks, faults: int) -> None:
    for name, reply in checks.judge.replies.items():
        if reply.starts > STARTS_FREE + 2 * faults:
            checks.fail("I13", name, f"saw {reply.starts} starts at {faults} faults")


def _check_folds(checks: Checks) -> None:
    """Fold each reply as the product does: from its floor, and again from a saved state (I1)."""
    rng = random.Random(f"folds/{checks.platform.options.seed}")
    records = {
        partition: checks.platform.broker.partition(TopicPartition(REPLIES, partition)).read(
            0, 1 << 30
        )
        for partition in range(limits.REPLY_PARTITIONS)
    }
    facts: dict[str, list[tuple[int, int, int]]] = {}
    decoded = {}
    for partition, log in records.items():
        for record in log:
            entries = decoded[partition, record.offset] = decode(record.value, ReplyRecord).entries
            for index, entry in enumerate(entries):
                facts.setdefault(fact_of(entry).request_id, []).append(
                    (partition, record.offset, index)
                )
    for name, places in facts.items():
        fold, saved_at = ReplyFold(), rng.randrange(len(places))
        for number, (partition, offset, index) in enumerate(places):
            if number == saved_at:
                # A saved state.
                held = {place: list(tokens) for place, tokens in fold.accepted.items()}
                fold = replace(fold, accepted=held)
            record = records[partition][offset]
            fold.apply(fact_of(decoded[partition, offset][index]), record.append_time_ms)
        reply = checks.judge.replies[name]
        wrong = wrong_fold(fold, reply, 1 << 60)
        if wrong is not None:
            checks.fail("I1", name, f"a reader from its floor believes: {wrong}")
        if reply.ended and usage_of(name, fold) != reply.usage():
            checks.fail("I6", name, "a reader from its floor makes another usage")


async def _check_store(checks: Checks) -> None:
    """Compare store, usage topic and recomputation (I16)."""
    store, judge = checks.platform.store, checks.judge
    rows = await store.rows()
    by_id: dict[str, UsageRow] = {}
    for row in rows:
        name = row.usage.request_id
        if name in by_id:
            checks.fail("I16", name, "is billed twice by the store")
        by_id[name] = row
        if name not in judge.usage:
            checks.fail("I16", name, "is in the store, not on the usage topic")
        if row.usage != judge.replies[name].usage():
            checks.fail("I16", name, f"the store says {row.usage}")
        if row.usage != decode(judge.usage[name][0].value, UsageRecorded):
            checks.fail("I16", name, "the store differs from the usage topic")
    for name in judge.usage.keys() - by_id.keys():
        checks.fail("I16", name, "its usage never reached the store")
    if await store.disputed():
        checks.fail("I16", "", f"copies differ: {await store.disputed()}")
