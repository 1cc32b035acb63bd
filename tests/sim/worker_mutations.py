"""Planted bugs in what a worker does with its requests."""

import asyncio
from collections.abc import Collection, Sequence
from copy import deepcopy
from typing import Any, cast

from msgspec.structs import replace

from engine_workers.engine.continuation import MatchStop
from engine_workers.job import Action, ChoiceRun, Job, Phase, decide
from engine_workers.jobs import Jobs
from engine_workers.outbox import Fact, Outbox
from engine_workers.pump import Start as StartRun
from engine_workers.tail import ReplyTail, TailedReply
from infra.errors import LogError
from infra.ports import Appended, TopicPartition
from schemas import limits
from schemas.fold import ReplyFold
from schemas.replies import Closed, Delta, Stop
from schemas.requests import RequestAccepted, Sampling
from schemas.topics import REPLIES
from schemas.usage import UsageRecorded, usage_of

_start, _meter, _on_fact = Jobs._start, Jobs._meter, Jobs.on_fact
_run, _opened, _take, _doubt = Jobs._run, Jobs._opened, Jobs.take, Jobs._doubt
_init, _acknowledged, _send = Jobs.__init__, Outbox._acknowledged, Outbox._send
_look_up, _adopt = ReplyTail.look_up, ReplyTail._adopt


def start_publishing_at_once(self: Jobs, job: Job, *rest: Any) -> None:
    """Tokens are published before the own start is read back."""
    _start(self, job, *rest)
    job.phase = Phase.RUNNING


def meter_from_memory(self: Jobs, job: Job, usage: UsageRecorded) -> None:
    """Usage counts what the engine made here, not what the log accepted."""
    if job.attempt is not None:
        made = sum(len(run.tokens) for run in job.attempt.runs)
        usage = replace(usage, output_tokens=made)
    _meter(self, job, usage)


def price_of_the_copy(self: Jobs, job: Job, usage: UsageRecorded) -> None:
    """The price book is that of the copy at hand, not of the first start."""
    version = job.request.placement.price_book_version
    _meter(self, job, replace(usage, price_book_version=version))


def meter_nothing_for_nothing(self: Jobs, job: Job, usage: UsageRecorded) -> None:
    """An end without tokens is not metered."""
    _meter(self, job, usage)
    if not usage.output_tokens:
        self._usage._waiting.remove(usage)
        self.finish(job)


def finish_before_the_usage(self: Jobs, job: Job, usage: UsageRecorded) -> None:
    """A record counts as finished before its usage is acknowledged."""
    _meter(self, job, usage)
    self._lanes.finish(job.lane, job.offsets)


def usage_at_the_acknowledgement(
    self: Outbox, facts: tuple[Fact, ...], done: "asyncio.Future[Appended]"
) -> None:
    """The usage is sent once the terminal is acknowledged, whether or not it counted."""
    _acknowledged(self, facts, done)
    if done.cancelled() or done.exception() is not None:
        return
    jobs = cast(Jobs, self._on_failed.__self__)  # type: ignore[attr-defined]  # a bound method
    for fact in facts:
        job = jobs._jobs.get(fact.request_id)
        if not isinstance(fact, Delta) or fact.terminal is None or job is None:
            continue
        if len(fact.terminal.tokens) != 1:
            continue
        tailed = jobs._tail._replies.get(fact.request_id)
        if tailed is None or tailed.usage is not None or job.phase is not Phase.RUNNING:
            continue
        fold = deepcopy(tailed.fold)
        fold.attempt = fact.attempt
        (claimed,) = fact.terminal.tokens
        fold.accepted = {(0, 0): list(claimed.token_ids[: fact.first_index])}
        fold.accepted_count = fact.first_index
        fold.apply(fact, done.result().append_time_ms)
        jobs._meter(job, usage_of(fact.request_id, fold))


async def send_tokens_twice(self: Outbox, partition: int, facts: tuple[Fact, ...]) -> None:
    """A producer doubles what holds tokens alone; a sound fold lets the index stop the copy."""
    await _send(self, partition, facts)
    if all(isinstance(fact, Delta) and fact.terminal is None for fact in facts):
        await _send(self, partition, facts)


def send_the_same_again(self: Jobs, facts: Collection[Fact], error: LogError) -> None:
    """What was sent with an unknown outcome is sent again under the same attempt."""
    for fact in facts:
        job = self._jobs.get(fact.request_id)
        if job is not None:
            self._outbox.put(job.request.locator.partition, fact)


def ignore_closes(self: Jobs, fact: Fact, counted: bool, reply: TailedReply) -> None:
    """A close does not stop what is running."""
    job = self._jobs.get(fact.request_id)
    if job is not None and isinstance(fact, Closed) and job.phase is Phase.RUNNING:
        return
    _on_fact(self, fact, counted, reply)


def run_from_the_beginning(self: Jobs, job: Job, run: ChoiceRun) -> None:
    """The engine is not told what was accepted before."""
    _run(self, job, run)
    commands = cast(Any, self._submit).__self__.pump._commands
    assert isinstance(commands[-1], StartRun), "just submitted"
    commands[-1] = StartRun(commands[-1].request)


def run_for_longer(self: Jobs, job: Job, run: ChoiceRun) -> None:
    """The engine may make as many tokens again as were accepted before."""
    _run(self, job, run)
    commands = cast(Any, self._submit).__self__.pump._commands
    request, emitted = commands[-1].request, commands[-1].emitted
    sampling = request.sampling
    longer = replace(sampling, max_tokens=sampling.max_tokens + len(emitted))
    commands[-1] = StartRun(replace(request, sampling=longer), emitted)


def forget_text_before_the_seam(
    emitted: Sequence[int], sampling: Sampling, eos_ids: Collection[int], match_stop: MatchStop
) -> Stop | None:
    """A stop string that began in an earlier attempt is not seen."""
    return None


def go_on_without_a_new_run(self: Jobs, job: Job, reply: TailedReply) -> None:
    """Tokens that landed while the start was on its way are counted, the engine goes on without."""
    attempt = job.attempt
    if job.phase is Phase.STARTING and attempt is not None:
        for run in attempt.runs:
            accepted = reply.fold.accepted.get((0, run.choice), [])
            run.tokens[: run.published] = accepted
            run.published = len(accepted)
    _opened(self, job, reply)


def take_twice(self: Jobs, request: RequestAccepted, *rest: Any) -> None:
    """A record of an id in flight is taken as a request of its own."""
    job = self._jobs.pop(request.request_id, None)
    if job is not None and job.attempt is not None:
        self._abort(job)
    _take(self, request, *rest)


def never_doubt(self: Jobs, job: Job, reason: str, **rest: Any) -> None:
    """What does not count, or may not have landed, is not cared about."""


def doubt_without_proof(self: Jobs, job: Job, reason: str, *, needs_proof: bool) -> None:
    """A new start needs no proof that the lane is still ours, and is made at once."""
    _doubt(self, job, reason, needs_proof=False)
    self._consider(job)


def give_up_what_has_tokens(job: Job, fold: ReplyFold, now_ms: int) -> Action:
    """A reply that was cut off is let run into its deadline."""
    action = decide(job, fold, now_ms)
    return Action.CLOSE_DEADLINE if action is Action.START and fold.accepted_count else action


class CountedAttempts:
    """Attempt ids from a counter that begins anew with each incarnation."""

    def __init__(self, process: str) -> None:
        self._process, self._count = process, 0

    def uuid(self) -> str:
        """Return the next id."""
        self._count += 1
        return f"{self._process}-{self._count}"


def count_attempts(self: Jobs, **parts: Any) -> None:
    """Attempts are numbered from 1 in each life of a worker."""
    _init(self, **parts)
    self._entropy = cast(Any, CountedAttempts(self.incarnation.partition("/")[0]))


def run_late(job: Job, fold: ReplyFold, now_ms: int) -> Action:
    """A record that landed too late is run all the same."""
    action = decide(job, fold, now_ms)
    return Action.START if action is Action.CLOSE_LATE else action


def run_closed(job: Job, fold: ReplyFold, now_ms: int) -> Action:
    """A close is ignored by whoever takes a request over."""
    action = decide(job, fold, now_ms)
    closed = fold.end is not None and fold.end.close_reason is not None
    return Action.START if action is Action.METER and closed else action


def bill_closed_nothing(request_id: str, fold: ReplyFold) -> UsageRecorded:
    """Replies that were closed cost nothing."""
    usage = usage_of(request_id, fold)
    if usage.close_reason is None:
        return usage
    return replace(usage, input_tokens=0, output_tokens=0)


def look_up_without_a_scan(
    self: ReplyTail, request_id: str, partition: int, floor: int
) -> TailedReply | None:
    """Nothing below the tail's start is ever read."""
    return _look_up(self, request_id, partition, 1 << 60)


async def start_tailing_late(self: ReplyTail) -> None:
    """The tail says that it starts here, and begins to read a little later."""
    places = [TopicPartition(REPLIES, index) for index in range(limits.REPLY_PARTITIONS)]
    before = await self._reader.bounds(places)
    await ORIGINAL_TAIL_START(self)
    await asyncio.sleep(0.3)
    after = await self._reader.bounds(places)
    self._start = {place.partition: before[place].end for place in places}
    self._reader.assign({place: after[place].end for place in places})


ORIGINAL_TAIL_START = ReplyTail.start


def forget_silently(self: ReplyTail) -> None:
    """Ended replies are forgotten, and the tail still claims to know them."""
    while len(self._ended) > limits.TAIL_ENDED_IDS_MAX:
        request_id, _ = self._ended.popitem(last=False)
        del self._replies[request_id]


def adopt_without_attempts(
    self: ReplyTail, partition: int, next_offset: int, folds: dict[str, ReplyFold], floors: Any
) -> None:
    """A fold that was completed by a scan does not know its attempt."""
    for fold in folds.values():
        fold.attempt = None
    _adopt(self, partition, next_offset, folds, floors)
