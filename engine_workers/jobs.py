"""All requests in flight at this worker: what each fact, token and failure means for its job.

The state machine of design rules 6.2-6.7. Every method is synchronous and returns at once; I/O is
done by the outbox, the usage sender, the lanes and the engine pump, which call back here.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import structlog

from engine_workers.engine.port import StepOutput
from engine_workers.job import (
    CLOSES,
    Action,
    ChoiceRun,
    Job,
    Phase,
    begin,
    begun_run,
    decide,
    engine_request,
)
from engine_workers.outbox import Fact, Outbox
from engine_workers.pump import Abort, Command, Rejection
from engine_workers.pump import Start as StartRun
from engine_workers.quarantine import Quarantine, Verdict
from engine_workers.tail import ReplyTail, TailedReply
from engine_workers.usage_sender import UsageSender
from infra.errors import LogError
from infra.fleet import FleetView
from infra.metrics import Metrics
from infra.ports import Clock, Entropy
from schemas.fold import ReplyFold
from schemas.replies import Closed, CloseReason, Start
from schemas.requests import RequestAccepted
from schemas.usage import UsageRecorded


class LaneBook(Protocol):
    """What jobs need of the lanes (`engine_workers.lanes`)."""

    commits_sent: int

    def finish(self, lane: int, offsets: Collection[int]) -> None:
        """These records need no more work."""


class Jobs:
    """The jobs by request id, and the runs of the engine that belong to them."""

    def __init__(
        self,
        *,
        incarnation: str,
        clock: Clock,
        entropy: Entropy,
        metrics: Metrics,
        fleet: FleetView,
        submit: Callable[[Command], None],
        bury: Callable[[Job, str, Callable[[Job], None]], None],
    ) -> None:
        self.incarnation = incarnation
        self._clock = clock
        self._entropy = entropy
        self._metrics = metrics
        self._fleet = fleet
        self._submit = submit
        self._bury = bury
        self._quarantine = Quarantine(incarnation, fleet.was_told_to_stop)
        self._jobs: dict[str, Job] = {}
        self._by_run: dict[str, Job] = {}
        self._log = structlog.get_logger("worker")

    def connect(
        self, *, tail: ReplyTail, outbox: Outbox, usage: UsageSender, lanes: LaneBook
    ) -> None:
        """Say who does the I/O; these and the jobs know each other."""
        self._tail, self._outbox, self._usage, self._lanes = tail, outbox, usage, lanes

    def __len__(self) -> int:
        return len(self._jobs)

    # --- from the lanes

    def take(self, request: RequestAccepted, lane: int, offset: int, append_time_ms: int) -> None:
        """Work on a record of a lane: fresh, redelivered, re-sent or late alike."""
        job = self._jobs.get(request.request_id)
        if job is not None:
            job.offsets.append(offset)
            self._metrics.count("requests_redelivered")
            return
        job = Job(
            request=request,
            lane=lane,
            append_time_ms=append_time_ms,
            taken_ms=self._clock.now_ms(),
            offsets=[offset],
        )
        self._jobs[request.request_id] = job
        self._consider(job)

    def drop_lane(self, lane: int) -> None:
        """Stop all work of a lane that was assigned away; its next owner carries on."""
        for job in [job for job in self._jobs.values() if job.lane == lane]:
            self._abort(job)
            self._tail.let_go(job.request.request_id)
            del self._jobs[job.request.request_id]

    def doubted_lanes(self) -> set[int]:
        """Return the lanes that wait for the proof of a commit."""
        return {
            job.lane
            for job in self._jobs.values()
            if job.phase is Phase.DOUBTED and job.proof_after is not None
        }

    def on_committed(self, lanes: Collection[int], commit_number: int) -> None:
        """A commit of these lanes succeeded: they were ours when it was taken."""
        for job in list(self._jobs.values()):
            if job.phase is not Phase.DOUBTED or job.proof_after is None:
                continue
            if job.lane in lanes and commit_number > job.proof_after:
                self._consider(job)

    # --- from the tail

    def on_fact(self, fact: Fact, counted: bool, reply: TailedReply) -> None:
        """A fact was read back; see `engine_workers.tail.TailListener`."""
        job = self._jobs.get(fact.request_id)
        if job is None or job.phase in (Phase.SCANNING, Phase.METERING):
            return
        usage = reply.usage
        if usage is not None:
            self._meter(job, usage)
            return
        if job.attempt is None or isinstance(fact, Closed):
            return
        if fact.attempt != job.attempt.attempt_id:
            return
        if isinstance(fact, Start):
            self._opened(job, reply)
        elif not counted:
            self._doubt(job, "uncounted", needs_proof=True)

    def on_complete(self, request_id: str, reply: TailedReply) -> None:
        """A scan is through; see `engine_workers.tail.TailListener`."""
        job = self._jobs.get(request_id)
        if job is not None and job.phase is Phase.SCANNING:
            self._act(job, reply)

    def on_unreadable(self, request_id: str) -> None:
        """The floor is gone: dead-letter, no usage, finish."""
        job = self._jobs.pop(request_id, None)
        if job is not None:
            self._bury(job, "the floor of its reply lies below the log's start", self.finish)

    # --- from the engine and the outbox

    def on_outputs(self, outputs: Sequence[StepOutput], rejected: Sequence[Rejection]) -> None:
        """Take the tokens of one step; publish those whose start is read back."""
        now_ms, tokens = self._clock.now_ms(), 0
        for output in outputs:
            job = self._by_run.get(output.run_id)
            if job is None or job.attempt is None:
                continue
            if output.refused is not None:
                self._close(job, CloseReason.FAILED, output.refused)
                continue
            job.attempt.take(output, now_ms)
            if job.phase is Phase.RUNNING and job.is_due(now_ms):
                tokens += self._publish(job, now_ms)
        if tokens:
            self._metrics.count("tokens_generated", tokens)
        for run_id, message in rejected:
            job = self._by_run.get(run_id)
            if job is not None:
                self._close(job, CloseReason.FAILED, message)

    def on_send_failed(self, facts: Sequence[Fact], error: LogError) -> None:
        """Some facts may not have reached the log, or may reach it late."""
        for fact in facts:
            job = self._jobs.get(fact.request_id)
            if job is None:
                continue
            if isinstance(fact, Closed):
                job.close_unsent = job.phase is Phase.CLOSING
            elif job.attempt is not None and fact.attempt == job.attempt.attempt_id:
                self._doubt(job, "send", needs_proof=False)
        self._metrics.count("log_send_failures", topic="replies.v1")
        self._log.warning("reply send failed", facts=len(facts), error=str(error))

    def metered(self, request_id: str) -> None:
        """The usage is acknowledged: the job is done and its offsets are finished."""
        job = self._jobs.get(request_id)
        if job is None or job.phase is not Phase.METERING:
            return
        self._metrics.count("usage_sent")
        self.finish(job)

    def finish(self, job: Job) -> None:
        """Forget the job and finish its records."""
        self._jobs.pop(job.request.request_id, None)
        self._lanes.finish(job.lane, job.offsets)

    # --- from the clock

    def tick(self) -> None:
        """Close what is past its deadline or whose gateway is gone; retry what failed."""
        now_ms = self._clock.now_ms()
        gateways = {report.incarnation for report in self._fleet.live("gateway")}
        for job in list(self._jobs.values()):
            if job.phase is Phase.CLOSING and job.close_unsent:
                self._send_close(job)
            elif job.phase in (Phase.RUNNING, Phase.STARTING, Phase.DOUBTED, Phase.HELD):
                if now_ms > job.request.deadline_ms:
                    self._close(job, CloseReason.DEADLINE, "the deadline has passed")
                elif job.request.gateway not in gateways and self._is_abandoned(job):
                    self._close(job, CloseReason.ABANDONED, "its gateway is gone")
                elif job.phase is Phase.DOUBTED and job.proof_after is None:
                    self._consider(job)
        for job in self._quarantine.due(self._jobs, self._is_barren):
            self._consider(job)

    def _is_abandoned(self, job: Job) -> bool:
        request = job.request
        if request.resumable or request.keyed:
            return False
        return self._fleet.is_lost(request.gateway, job.append_time_ms)

    # --- what is done about a job

    def _consider(self, job: Job) -> None:
        """Look its fold up and act on it, or wait for the scan that completes it."""
        locator = job.request.locator
        job.phase, job.proof_after = Phase.SCANNING, None
        reply = self._tail.look_up(job.request.request_id, locator.partition, locator.floor)
        if reply is not None:
            self._act(job, reply)

    def _act(self, job: Job, reply: TailedReply) -> None:
        action = decide(job, reply.fold, self._clock.now_ms())
        if action is Action.METER:
            usage = reply.usage
            assert usage is not None, "an ended fold has its usage"
            self._meter(job, usage)
        elif action is Action.START:
            self._admit(job, reply)
        else:
            self._close(job, *CLOSES[action])

    def _admit(self, job: Job, reply: TailedReply) -> None:
        """Start a job, or hold it while another runs alone, or give it up (design rule 6.11)."""
        verdict = self._quarantine.judge(job, reply.fold)
        if verdict is Verdict.LATER:
            return
        if verdict is Verdict.NEVER:
            job.phase, job.close_reason = Phase.CLOSING, CloseReason.FAILED
            job.close_message = self._quarantine.message(reply.fold)
            self._metrics.count("requests_given_up")
            self._bury(job, job.close_message, self._close_buried)
            return
        if verdict is Verdict.ALONE:
            for other in [other for other in self._jobs.values() if other.attempt is not None]:
                self._abort(other)  # it goes on after its accepted tokens
                other.phase = Phase.HELD
        self._start(job, reply.fold)

    def _is_barren(self, job: Job) -> bool:
        """Tell whether no token of a running job was accepted since its start."""
        locator = job.request.locator
        reply = self._tail.look_up(job.request.request_id, locator.partition, locator.floor)
        return reply is None or bool(reply.fold.barren)

    def _close_buried(self, job: Job) -> None:
        if self._jobs.get(job.request.request_id) is job and job.phase is Phase.CLOSING:
            self._send_close(job)

    def _start(self, job: Job, fold: ReplyFold) -> None:
        """Open an attempt; the engine prefills while the start is on its way."""
        request = job.request
        attempt_id = self._entropy.uuid()
        job.attempt = begin(request, attempt_id, fold, self._clock.now_ms())
        job.phase = Phase.STARTING
        self._metrics.count("attempts_started")
        self._outbox.put(
            request.locator.partition,
            Start(
                request_id=request.request_id,
                attempt=attempt_id,
                worker=self.incarnation,
                header=request.header,
                identity=request.identity,
                placement=request.placement,
                traceparent=request.traceparent,
                alone=self._quarantine.alone == request.request_id,
            ),
        )
        if not job.is_old:
            for run in job.attempt.runs:
                self._run(job, run)

    def _run(self, job: Job, run: ChoiceRun) -> None:
        """Let the engine continue after the tokens of a choice that has not ended."""
        if run.ended:
            return
        self._by_run[run.run_id] = job
        request = engine_request(job.request, run)
        self._submit(StartRun(request, emitted=tuple(run.tokens)))

    def _opened(self, job: Job, reply: TailedReply) -> None:
        """The own start is read back: from here on tokens may be published.

        What was accepted up to here is what they continue, also where an earlier attempt's tokens
        landed between our look at the fold and our start.
        """
        attempt = job.attempt
        if job.phase is not Phase.STARTING or attempt is None:
            return  # a second landing of the same start
        job.phase = Phase.RUNNING
        for index, run in enumerate(attempt.runs):
            if not run.is_next_in(reply.fold):
                self._end_run(run)
                run = begun_run(job.request, run.choice, f"{run.run_id}/again", reply.fold)
                attempt.runs[index] = run
                self._run(job, run)
            elif job.is_old:
                self._run(job, run)
        job.published_ms = now_ms = self._clock.now_ms()
        if not job.is_due(now_ms):
            return
        tokens = self._publish(job, now_ms)
        if tokens:
            self._metrics.count("tokens_generated", tokens)

    def _publish(self, job: Job, now_ms: int) -> int:
        """Hand the log all that is unpublished; return how many tokens that is."""
        tokens = 0
        for delta in job.next_deltas(now_ms):
            tokens += len(delta.token_ids)
            self._outbox.put(job.request.locator.partition, delta)
        return tokens

    def _doubt(self, job: Job, reason: str, *, needs_proof: bool) -> None:
        self._metrics.count("attempts_doubted", reason=reason)
        self._abort(job)
        job.phase = Phase.DOUBTED
        job.proof_after = self._lanes.commits_sent if needs_proof else None

    def _close(self, job: Job, reason: CloseReason, message: str | None) -> None:
        if job.phase is Phase.RUNNING:
            self._publish(job, self._clock.now_ms())  # what a whole reply has held back
        self._abort(job)
        job.phase, job.close_reason, job.close_message = Phase.CLOSING, reason, message
        self._send_close(job)

    def _send_close(self, job: Job) -> None:
        request = job.request
        assert job.close_reason is not None, "a close has a reason"
        job.close_unsent = False
        self._outbox.put(
            request.locator.partition,
            Closed(
                request_id=request.request_id,
                reason=job.close_reason,
                by=self.incarnation,
                header=request.header,
                identity=request.identity,
                placement=request.placement,
                message=job.close_message,
            ),
        )

    def _meter(self, job: Job, usage: UsageRecorded) -> None:
        self._abort(job)
        job.phase = Phase.METERING
        self._metrics.count("replies_ended", reason=usage.close_reason or "terminal")
        self._usage.put(usage)

    def _abort(self, job: Job) -> None:
        """Stop the engine's runs of this job, if there are any."""
        if job.attempt is None:
            return
        for run in job.attempt.runs:
            self._end_run(run)
        job.attempt = None

    def _end_run(self, run: ChoiceRun) -> None:
        if self._by_run.pop(run.run_id, None) is not None:
            self._submit(Abort(run.run_id))
