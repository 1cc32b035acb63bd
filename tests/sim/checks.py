"""The checkers: every invariant of this scope, watched while a run goes on and weighed at its end.

Owns the judge and the moments at which views are compared with it. The invariants' numbers stand
in each message. Hooks are called synchronously: at each append, step, commit and tick.
"""

from collections.abc import Mapping, Sequence

from engine_workers.engine.port import StepOutput
from engine_workers.job import Phase
from gateway.reader import ReplyReader
from infra.memory.partition import PartitionLog
from infra.memory.wakeup import Wakeup
from infra.ports import LogRecord, TopicPartition
from schemas import limits
from schemas.codec import decode, encode
from schemas.idempotency import IdempotencyRecord
from schemas.replies import CloseReason, ReplyRecord, Start, fact_of
from schemas.requests import RequestAccepted
from schemas.topics import (
    IDEMPOTENCY,
    REPLIES,
    USAGE,
    idempotency_partition,
    requests_topic,
    workers_group,
)
from schemas.usage import UsageRecorded
from tests.sim.claim_judge import ClaimJudge
from tests.sim.gateways import SimGateway
from tests.sim.judge import Judge, Judged
from tests.sim.platform import POOL, Platform
from tests.sim.views import CheckedTokens, wrong_fold, wrong_tailed
from tests.sim.workers import SimWorker

HEALED_S = 8.0
"""A request that is served by then after healing need not run into its deadline (I12)."""
HEALTHY_S = 1.0
"""A close that all can read stops every engine within this (I14)."""


class _Ear(Wakeup):
    """Hears each append to one partition at once."""

    __slots__ = ("_checks", "_log", "_next_offset")

    def __init__(self, checks: "Checks", log: PartitionLog) -> None:
        super().__init__()
        self._checks, self._log, self._next_offset = checks, log, 0

    def wake(self) -> None:
        """Take what was appended."""
        for record in self._log.read(self._next_offset, 1 << 30):
            self._next_offset = record.offset + 1
            self._checks.on_append(record)


class WatchedCommits(dict[TopicPartition, int]):
    """A group's commits, judged before they are taken."""

    def __init__(self, checks: "Checks") -> None:
        super().__init__()
        self._checks = checks

    def update(self, offsets: Mapping[TopicPartition, int]) -> None:  # type: ignore[override]
        """Judge, then take."""
        self._checks.on_commit(self, offsets)
        super().update(offsets)


class Checks:
    """All checkers of one run."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.judge = Judge()
        self.claims = ClaimJudge()
        self.cancels_asked: set[str] = set()
        """Request ids whose clients asked for their end."""
        self.workers: dict[str, SimWorker] = {}
        self.gateways: dict[str, SimGateway] = {}
        self._checked_tokens: dict[str, CheckedTokens] = {}
        self.faulty_until_s = 0.0
        """Until then an engine may not have heard of a close."""
        self.appended_s = 0.0
        """When the newest record landed that is judged here."""

    def listen(self) -> None:
        """Hear every append from now on, and see every commit."""
        broker = self.platform.broker
        for name in (requests_topic(POOL), REPLIES, USAGE, IDEMPOTENCY):
            for log in broker.topic(name).partitions:
                log.watch(_Ear(self, log))
        for group in (workers_group(POOL), "metering"):
            broker.group_reader(group)
            broker.groups[group].commits = WatchedCommits(self)

    def fail(self, invariant: str, about: str, text: str) -> None:
        """End the run with what was violated, and the event list of the request concerned."""
        lines = "\n".join(self.platform.events.tail(about or None))
        self.platform.fail(f"{invariant}: {about} {text}\n{lines}")

    # --- at each append

    def on_append(self, record: LogRecord) -> None:
        """Judge one record that has just landed."""
        self.appended_s = self.platform.now_s()
        if record.topic == REPLIES:
            self._on_replies(record)
        elif record.topic == USAGE:
            self._on_usage(record)
        elif record.topic == IDEMPOTENCY:
            self._on_key(record)
        else:
            self._on_request(record)

    def _on_key(self, record: LogRecord) -> None:
        fact = decode(record.value, IdempotencyRecord)
        now_s = self.platform.now_s()
        self.platform.events.note(now_s, f"keys {record.partition}@{record.offset} {_told(fact)}")
        wrong = self.claims.take(record, fact, self.judge.replies)
        if wrong is not None:
            self.fail(*wrong)

    def _on_replies(self, record: LogRecord) -> None:
        facts = decode(record.value, ReplyRecord)
        now_s = self.platform.now_s()
        for reply in self.judge.take_replies(record, facts, now_s):
            if reply.ended and reply.ended_s == now_s:
                self._check_end(reply)
            place = f"{record.partition}@{record.offset}"
            said = f"{reply.request_id} {_shown(facts, reply)}"
            self.platform.events.note(now_s, f"replies {place} {said}")
            self._check_tokens(reply)
        for entry in facts.entries:
            fact = fact_of(entry)
            if isinstance(fact, Start):
                whose = (fact.worker, fact.request_id)
                if fact.attempt in self.judge.starts:
                    self.fail("I5", fact.request_id, f"attempt {fact.attempt} started twice")
                self.judge.starts[fact.attempt] = whose

    def _check_end(self, reply: Judged) -> None:
        """Whatever struck, a reply is continued: no worker gives it up (I12)."""
        close = reply.close
        if close is None:
            return
        if close.reason is CloseReason.CANCELLED:
            self._check_cancel(reply)
        if close.reason is CloseReason.FAILED and close.by.startswith("worker"):
            self.fail("I12", reply.request_id, f"was given up by {close.by}: {close.message}")
        if close.reason is not CloseReason.DEADLINE:
            return
        landed, has = self.judge.requests.get(reply.request_id), self.platform.options.has
        early = landed is not None and reply.ended_ms < landed.request.deadline_ms
        if early and not (has("clock-skew") or has("clock-step")):
            self.fail("I12", reply.request_id, "was closed before its deadline")
        if reply.ended_s - self.faulty_until_s > HEALED_S:
            self.fail("I12", reply.request_id, f"ran into its deadline {HEALED_S} s after healing")

    def _check_cancel(self, reply: Judged) -> None:
        """A reply under a key ends by its client's word alone, never by a lost connection (I12)."""
        keyed = reply.request_id in self.claims.by_request
        if keyed and reply.request_id not in self.cancels_asked:
            self.fail("I12", reply.request_id, "has a key and was cancelled by a lost connection")

    def _check_tokens(self, reply: Judged) -> None:
        landed = self.judge.requests.get(reply.request_id)
        if landed is None or not reply.tokens:
            return
        checked = self._checked_tokens.get(reply.request_id)
        if checked is None:
            checked = CheckedTokens(landed.request)
            self._checked_tokens[reply.request_id] = checked
        wrong = checked.wrong_token(self.platform.script, reply)
        if wrong is not None:
            self.fail("I3", reply.request_id, wrong)
        if landed.first_append_ms > landed.request.admit_by_ms:
            self.fail("I9", reply.request_id, "landed late and has accepted tokens all the same")
        if landed.request.keyed:
            wrong = self.claims.wrong_tokens(reply.request_id)
            if wrong is not None:
                self.fail("I9", reply.request_id, wrong)

    def _on_request(self, record: LogRecord) -> None:
        request = decode(record.value, RequestAccepted)
        landed = self.judge.take_request(record, request)
        self.platform.events.note(
            self.platform.now_s(),
            f"request {record.partition}@{record.offset} {request.request_id}",
        )
        if landed.request.locator != request.locator or landed.request.lane != request.lane:
            self.fail("I11", request.request_id, "copies carry different locators")
        if record.partition != request.lane:
            self.fail("I11", request.request_id, f"it landed in lane {record.partition}")
        if request.keyed:
            told = self.claims.wrong_event(request)
            if told is not None:
                self.fail(told[0], request.request_id, told[1])
        reply = self.judge.replies.get(request.request_id)
        if reply is not None and request.locator.floor > reply.first_offset:
            self.fail("I11", request.request_id, "its floor lies above its first reply record")

    def _on_usage(self, record: LogRecord) -> None:
        usage = decode(record.value, UsageRecorded)
        name = usage.request_id
        copies = self.judge.usage.setdefault(name, [])
        copies.append(record)
        self.platform.events.note(self.platform.now_s(), f"usage {record.offset} {name}")
        reply = self.judge.replies.get(name)
        if reply is None or not reply.ended:
            self.fail("I6", name, "has usage without an end")
        elif record.value != encode(reply.usage()):
            self.fail("I6", name, f"usage is {usage}, by the log {reply.usage()}")
        elif record.value != copies[0].value:
            self.fail("I6", name, "two usage events differ")

    # --- at each commit

    def on_commit(
        self, before: Mapping[TopicPartition, int], offsets: Mapping[TopicPartition, int]
    ) -> None:
        """Judge a commit that a group's coordinator is about to take (I8, I16)."""
        # A member's partitions are a set of named ones: their order differs between interpreters.
        shown = " ".join(f"{place.partition}:{offsets[place]}" for place in sorted(offsets))
        self.platform.events.note(self.platform.now_s(), f"commit {shown}")
        for place, next_offset in sorted(offsets.items()):
            log = self.platform.broker.partition(place)
            first = before.get(place, 0)
            for record in log.read(first, max(0, next_offset - first)):
                if place.topic == USAGE:
                    self._check_stored(record)
                else:
                    self._check_finished(record)

    def _check_finished(self, record: LogRecord) -> None:
        name = decode(record.value, RequestAccepted).request_id
        reply = self.judge.replies.get(name)
        if reply is None or not reply.ended:
            self.fail("I8", name, f"offset {record.offset} was committed before its end")
        elif name not in self.judge.usage:
            self.fail("I8", name, f"offset {record.offset} was committed before its usage")

    def _check_stored(self, record: LogRecord) -> None:
        name = decode(record.value, UsageRecorded).request_id
        if not _holds(self.platform, name):
            self.fail("I16", name, "its usage was committed before it was stored")

    # --- at each engine step

    def on_step(self, worker: SimWorker, outputs: Sequence[StepOutput]) -> None:
        """Judge what an engine worked on in a turn that took all commands first (I14)."""
        for output in outputs:
            job = worker.worker.jobs._by_run.get(output.run_id)
            if job is None:
                self.fail("I14", "", f"{worker.name} steps run {output.run_id} of no job")
                return
            reply = self.judge.replies.get(job.request.request_id)
            if reply is None or not reply.ended:
                continue
            place = TopicPartition(REPLIES, reply.partition)
            if reply.at(worker.tail_reader.position(place)).ended:
                self.fail("I14", reply.request_id, f"{worker.name} steps it after reading its end")
            now_s = self.platform.now_s()
            if now_s - max(reply.ended_s, self.faulty_until_s) > HEALTHY_S:
                self.fail("I14", reply.request_id, f"{worker.name} steps it long after its end")

    # --- from time to time

    def on_tick(self) -> None:
        """Compare all views of all living processes with the log, and all queues with their
        bounds."""
        for worker in self.workers.values():
            self._check_worker(worker)
        for gateway in self.gateways.values():
            self._check_gateway(gateway)

    def _check_worker(self, worker: SimWorker) -> None:
        tail, jobs = worker.worker._tail, worker.worker.jobs._jobs
        if not tail._start:
            return  # it has not begun to tail
        for job in jobs.values():
            name = job.request.request_id
            tailed = tail._replies.get(name)
            forgotten = tailed is None or tailed.complete_from > job.request.locator.floor
            if job.phase is Phase.SCANNING or (forgotten and job.phase is Phase.METERING):
                continue  # an ended reply may be forgotten already
            if tailed is None:
                self.fail("I1", name, f"{worker.name} has forgotten a reply in flight")
                return
            position = worker.tail_reader.position(TopicPartition(REPLIES, tailed.partition))
            wrong = wrong_tailed(
                tailed, self.judge.replies.get(name), max(position, tailed.next_offset)
            )
            if wrong is not None:
                self.fail("I1", name, f"{worker.name} in phase {job.phase.name} believes: {wrong}")
        self._check_worker_bounds(worker, len(jobs))

    def _check_worker_bounds(self, worker: SimWorker, jobs: int) -> None:
        if jobs > limits.WORKER_INFLIGHT_MAX + limits.LANES:
            self.fail("I17", "", f"{worker.name} has {jobs} jobs in flight")
        if worker.pump._credits < 0 or worker.pump._credits > limits.ENGINE_STEP_CREDITS:
            self.fail("I17", "", f"{worker.name} has {worker.pump._credits} credits")
        for lane, progress in worker.worker._lanes._progress.items():
            if progress.span > limits.LANE_UNFINISHED_SPAN_MAX + limits.WORKER_INFLIGHT_MAX:
                self.fail("I17", "", f"{worker.name} lane {lane}: span {progress.span}")

    def _check_gateway(self, gateway: SimGateway) -> None:
        parts = gateway.parts
        foreign = (foreign.tail for foreign in parts.tails._foreign.values())
        for tail in (parts.replies, *foreign):
            if tail.started:
                self._check_tail(gateway.name, tail)
        self._check_keys(gateway)
        pool, open_count = parts.tails._rereadings, parts.submission.open_count
        if pool._open_count > limits.REREADS_MAX:
            self.fail("I17", "", f"{gateway.name} has {pool._open_count} re-readings")
        if open_count > 2 * limits.GATEWAY_INFLIGHT_MAX:
            self.fail("I17", "", f"{gateway.name} has {open_count} clients")

    def _check_tail(self, gateway: str, tail: ReplyReader) -> None:
        for followed in tail.followed():
            name = followed.request.request_id
            next_offset = max(tail.next_offset, followed.complete_to)
            wrong = wrong_fold(followed.fold, self.judge.replies.get(name), next_offset)
            if wrong is not None:
                self.fail("I1", name, f"{gateway} believes: {wrong}")
            for mailbox in followed.mailboxes:
                if len(mailbox._entries) > limits.MAILBOX_ENTRIES_MAX:
                    self.fail("I17", name, f"its mailbox holds {len(mailbox._entries)}")

    def _check_keys(self, gateway: SimGateway) -> None:
        """Compare who holds each key by a gateway's book and by the log (I1, I10)."""
        tail = gateway.parts.claim_tail
        for scope in self.claims.holders:
            partition = idempotency_partition(scope)
            held = tail.held(scope)
            nonce = None if held is None else held.claim.nonce
            next_offset = tail._next.get(TopicPartition(IDEMPOTENCY, partition), 0)
            truth = self.claims.held(scope, next_offset)
            if nonce != truth:
                self.fail("I10", nonce or "", f"{gateway.name} believes {nonce}, the log {truth}")


def _told(fact: IdempotencyRecord) -> str:
    """Return what a record says of a key, in few words."""
    if fact.claimed is not None:
        return f"claimed {fact.claimed.nonce[:8]} for {fact.claimed.request_id}"
    if fact.released is not None:
        return f"released {fact.released.nonce[:8]}"
    if fact.done is not None:
        return f"done {fact.done.nonce[:8]} at {fact.done.end_offset}"
    return f"resumed {fact.resumed.request_id if fact.resumed else None}"


def _shown(facts: ReplyRecord, reply: Judged) -> str:
    """Return what a record says of one reply, in few words."""
    words = []
    for entry in facts.entries:
        fact = fact_of(entry)
        if fact.request_id != reply.request_id:
            continue
        if entry.start is not None:
            words.append(f"start {entry.start.attempt[:4]} by {entry.start.worker[:13]}")
        elif entry.closed is not None:
            words.append(f"closed {entry.closed.reason.value} by {entry.closed.by[:14]}")
        elif entry.delta is not None:
            delta = entry.delta
            end = " terminal" if delta.terminal else ""
            span = f"{delta.first_index}+{len(delta.token_ids)}"
            words.append(f"delta {delta.attempt[:4]} {span}{end}")
    return f"{', '.join(words)} -> {len(reply.tokens)}{' ended' if reply.ended else ''}"


def _holds(platform: Platform, request_id: str) -> bool:
    return any(row.usage.request_id == request_id for row in platform.store._rows)
