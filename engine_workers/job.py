"""One request in flight at this worker, and the pure decision what to do about it next.

Source: design rules 6.2, 6.3, 6.6. No I/O: `engine_workers.worker` carries the decisions out.
"""

import hashlib
from enum import Enum, auto

from msgspec import Struct

from engine_workers.engine.port import EngineRequest, StepOutput
from schemas import limits
from schemas.fold import ReplyFold
from schemas.replies import (
    ChoiceTokens,
    CloseReason,
    Delta,
    StageTimes,
    Stop,
    Terminal,
    TokenLogprob,
)
from schemas.reply_size import fits_an_event
from schemas.requests import Identity, RequestAccepted


class Phase(Enum):
    """Where a job stands."""

    SCANNING = auto()
    """Its fold is not complete yet."""
    STARTING = auto()
    """Its start is sent, not read back; the engine may prefill, nothing is published."""
    RUNNING = auto()
    """Its start is read back and current; tokens are published."""
    HELD = auto()
    """Another request runs alone (`engine_workers.quarantine`); this one starts after it."""
    DOUBTED = auto()
    """Its attempt was given up; see `Job.proof_after`."""
    CLOSING = auto()
    """A close is sent, not read back."""
    METERING = auto()
    """The end is read back; its usage is being sent."""


class Action(Enum):
    """What to do with a job whose fold is complete."""

    METER = auto()
    START = auto()
    CLOSE_LATE = auto()
    CLOSE_DEADLINE = auto()
    CLOSE_UNSERVABLE = auto()


CLOSES = {
    Action.CLOSE_LATE: (CloseReason.LATE, None),
    Action.CLOSE_DEADLINE: (CloseReason.DEADLINE, None),
    Action.CLOSE_UNSERVABLE: (
        CloseReason.FAILED,
        "n, max_tokens, logprobs: the reply could become larger than an event",
    ),
}
"""Reason and message of each."""


class ChoiceRun(Struct):
    """One choice of an attempt: a run of the engine, what it made and what was published."""

    choice: int
    run_id: str
    """The engine's run; a second one where tokens were accepted while the start was on its way."""
    tokens: list[int]
    """All ids of the choice: those accepted before this attempt, then those the engine made."""
    logprobs: list[TokenLogprob] | None
    """By token; None where the request did not ask."""
    published: int
    """How many of the tokens are accepted or were handed to the log."""
    stop: Stop | None
    """Why the choice ended: in the engine, or by the log before this attempt."""
    ended: bool
    """True where the log has the stop already, or was handed it: nothing more is published."""

    @property
    def has_news(self) -> bool:
        """Tell whether anything is unpublished."""
        return len(self.tokens) > self.published or (self.stop is not None and not self.ended)

    def is_next_in(self, fold: ReplyFold) -> bool:
        """Tell whether what is published next is what the fold accepts next of this choice."""
        accepted = fold.accepted.get((0, self.choice), ())
        return len(accepted) == self.published and (self.choice in fold.stops) == self.ended

    def take(self, output: StepOutput) -> None:
        """Note new tokens of the engine; publishing them is `next_deltas`' business."""
        self.tokens.extend(output.token_ids)
        if self.logprobs is not None:
            self.logprobs.extend(output.logprobs or ())
        if output.stop is not None:
            self.stop = output.stop


class Attempt(Struct):
    """One start of this job in this process, with a run for each choice."""

    attempt_id: str
    started_ms: int
    runs: list[ChoiceRun]
    """By choice."""
    cached_tokens: int = 0
    """As the run says that makes the first token: the other choices' runs find in the cache what it
    has put there, though their prompt is one and billed once."""
    first_token_ms: int | None = None

    def take(self, output: StepOutput, now_ms: int) -> None:
        """Note an output of one of the runs."""
        if self.first_token_ms is None:
            self.first_token_ms = now_ms
            self.cached_tokens = output.cached_tokens
        for run in self.runs:
            if run.run_id == output.run_id:
                run.take(output)

    @property
    def ended(self) -> bool:
        """Tell whether every choice has ended, as far as was published."""
        return all(run.ended for run in self.runs)


class Job(Struct):
    """A request of one of this worker's lanes, from its record to its acknowledged usage."""

    request: RequestAccepted
    lane: int
    append_time_ms: int
    taken_ms: int
    offsets: list[int]
    """Records of this id: the first, and every copy delivered since."""
    phase: Phase = Phase.SCANNING
    attempt: Attempt | None = None
    close_reason: CloseReason | None = None
    close_message: str | None = None
    close_unsent: bool = False
    """The close's send failed or its outcome is unknown: it is sent again."""
    suspect: bool = False
    """While held: it will have to run alone."""
    published_ms: int = 0
    """When tokens were last handed to the log, or could be first, by this process' clock."""
    proof_after: int | None = None
    """While doubted: number of the newest commit sent before the doubt; only the success of a
    later one proves that the lane is still ours. None where the doubt needs no proof."""

    @property
    def is_old(self) -> bool:
        """Tell whether the record waited long, as one does whose worker died.

        Its start is read back before the engine sees it: should it end this process too, the log
        tells so. For fresh records the engine prefills meanwhile.
        """
        return self.taken_ms - self.append_time_ms > limits.PREFILL_AHEAD_MS

    def is_due(self, now_ms: int) -> bool:
        """Tell whether what is unpublished should go to the log now.

        Each token of a stream is shown at once. A whole reply is shown at its end, so its tokens
        travel together: its next owner would make again what is held back, and who cancels it
        is not billed that. A suspect's first token clears it, so it is shown at once, too.
        """
        attempt = self.attempt
        assert attempt is not None, "nothing to publish"
        return (
            self.request.header.stream
            or self.suspect
            or now_ms - self.published_ms >= limits.WHOLE_REPLY_HOLD_MS
            or all(run.stop is not None for run in attempt.runs)
        )

    def next_deltas(self, now_ms: int) -> list[Delta]:
        """Return all unpublished tokens, a delta for each choice with news.

        The delta that ends the last open choice is the terminal.
        """
        attempt = self.attempt
        assert attempt is not None, "nothing to publish"
        self.published_ms = now_ms
        return [self._next_delta(attempt, run, now_ms) for run in attempt.runs if run.has_news]

    def _next_delta(self, attempt: Attempt, run: ChoiceRun, now_ms: int) -> Delta:
        first_index, run.published = run.published, len(run.tokens)
        run.ended = run.stop is not None
        logprobs = None if run.logprobs is None else tuple(run.logprobs[first_index:])
        return Delta(
            request_id=self.request.request_id,
            attempt=attempt.attempt_id,
            segment=0,
            choice=run.choice,
            first_index=first_index,
            token_ids=tuple(run.tokens[first_index:]),
            cached_tokens=attempt.cached_tokens if first_index == 0 else None,
            stop=run.stop,
            terminal=self._terminal(attempt, now_ms) if run.ended and attempt.ended else None,
            logprobs=logprobs or None,
        )

    def _terminal(self, attempt: Attempt, now_ms: int) -> Terminal:
        return Terminal(
            stops=tuple(run.stop for run in attempt.runs if run.stop is not None),
            stages=StageTimes(
                taken_ms=self.taken_ms,
                started_ms=attempt.started_ms,
                first_token_ms=attempt.first_token_ms or now_ms,
                finished_ms=now_ms,
            ),
            tokens=tuple(
                ChoiceTokens(
                    segment=0,
                    choice=run.choice,
                    token_ids=tuple(run.tokens),
                    logprobs=None if run.logprobs is None else tuple(run.logprobs),
                )
                for run in attempt.runs
            ),
        )


def begin(request: RequestAccepted, attempt_id: str, fold: ReplyFold, now_ms: int) -> Attempt:
    """Return an attempt that continues after what the fold has accepted of each choice."""
    return Attempt(
        attempt_id=attempt_id,
        started_ms=now_ms,
        runs=[
            begun_run(request, choice, f"{attempt_id}/{choice}" if choice else attempt_id, fold)
            for choice in range(request.header.choices)
        ],
    )


def begun_run(request: RequestAccepted, choice: int, run_id: str, fold: ReplyFold) -> ChoiceRun:
    """Return a choice's run that continues after what the fold has accepted of it."""
    stop = fold.stops.get(choice)
    tokens = list(fold.accepted.get((0, choice), ()))
    logprobs = list(fold.logprobs.get((0, choice), ()))
    asked = request.sampling.logprobs is not None
    return ChoiceRun(
        choice=choice,
        run_id=run_id,
        tokens=tokens,
        logprobs=logprobs if asked and len(logprobs) == len(tokens) else None,
        published=len(tokens),
        stop=stop,
        ended=stop is not None,
    )


def engine_request(request: RequestAccepted, run: ChoiceRun) -> EngineRequest:
    """Return what the engine is asked for one choice."""
    return EngineRequest(
        run_id=run.run_id,
        prompt_token_ids=request.prompt_token_ids,
        sampling=request.sampling,
        seed=request.seed + run.choice,
        priority=request.priority,
        grammar=request.grammar,
        cache_salt=cache_salt_of(request.identity),
    )


def cache_salt_of(identity: Identity) -> str:
    """Return what tells apart whose prefixes a run may find in the cache: workspaces of orgs.

    A hash, as names are longer, with their lengths, so that ("a", "bc") and ("ab", "c") differ.
    """
    names = (identity.org.encode(), identity.workspace.encode())
    salt = b"".join(len(name).to_bytes(4, "big") + name for name in names)
    return hashlib.blake2b(salt, digest_size=16).hexdigest()


def decide(job: Job, fold: ReplyFold, now_ms: int) -> Action:
    """Return what a job with a complete fold needs next.

    A reply that has accepted tokens is started like any other, and continued after them.
    """
    if fold.end is not None:
        return Action.METER
    if job.append_time_ms > job.request.admit_by_ms and fold.origin is None:
        return Action.CLOSE_LATE
    if now_ms > job.request.deadline_ms:
        return Action.CLOSE_DEADLINE
    if not _fits(job.request):
        return Action.CLOSE_UNSERVABLE
    return Action.START


def _fits(request: RequestAccepted) -> bool:
    """Tell whether the reply fits an event; gateways have checked it, older writers may not."""
    return request.header.choices <= limits.REPLY_CHOICES_MAX and fits_an_event(
        choices=request.header.choices,
        max_tokens=request.sampling.max_tokens,
        logprobs=request.sampling.logprobs,
    )
