"""One request in flight at this worker, and the pure decision what to do about it next.

Source: design rules 6.2, 6.3, 6.6. No I/O: `engine_workers.worker` carries the decisions out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from engine_workers.engine.port import StepOutput
from schemas.fold import ReplyFold
from schemas.replies import (
    ChoiceTokens,
    CloseReason,
    Delta,
    StageTimes,
    Stop,
    Terminal,
)
from schemas.requests import RequestAccepted


class Phase(Enum):
    """Where a job stands."""

    SCANNING = auto()
    """Its fold is not complete yet."""
    STARTING = auto()
    """Its start is sent, not read back; the engine may prefill, nothing is published."""
    RUNNING = auto()
    """Its start is read back and current; tokens are published."""
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


CLOSE_REASONS = {
    Action.CLOSE_LATE: CloseReason.LATE,
    Action.CLOSE_DEADLINE: CloseReason.DEADLINE,
}


@dataclass(slots=True)
class Attempt:
    """One start of this job in this process: what the engine made and what was published."""

    attempt_id: str
    run_id: str
    """The engine's run; a second one where tokens were accepted while the start was on its way."""
    started_ms: int
    tokens: list[int]
    """All ids of the reply: those accepted before this attempt, then those the engine made."""
    published: int
    """How many of them are accepted or were handed to the log."""
    cached_tokens: int = 0
    first_token_ms: int | None = None
    stop: Stop | None = None

    def rerun(self, run_id: str, accepted: Sequence[int]) -> None:
        """Begin again after `accepted`: another attempt's tokens counted before this start did."""
        self.run_id = run_id
        self.tokens, self.published, self.stop = list(accepted), len(accepted), None

    def take(self, output: StepOutput, now_ms: int) -> None:
        """Note new tokens of the engine; publishing them is `next_delta`'s business."""
        if self.first_token_ms is None:
            self.first_token_ms = now_ms
            self.cached_tokens = output.cached_tokens
        self.tokens.extend(output.token_ids)
        if output.stop is not None:
            self.stop = output.stop

    @property
    def has_news(self) -> bool:
        """Tell whether anything is unpublished."""
        return len(self.tokens) > self.published or self.stop is not None


@dataclass(slots=True)
class Job:
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
    proof_after: int | None = None
    """While doubted: number of the newest commit sent before the doubt; only the success of a
    later one proves that the lane is still ours. None where the doubt needs no proof."""

    def next_delta(self, now_ms: int) -> Delta:
        """Return all unpublished tokens as one delta, with the terminal where the run ended."""
        attempt = self.attempt
        assert attempt is not None and attempt.has_news, "nothing to publish"
        first_index = attempt.published
        token_ids = tuple(attempt.tokens[first_index:])
        attempt.published = len(attempt.tokens)
        stop, attempt.stop = attempt.stop, None
        return Delta(
            request_id=self.request.request_id,
            attempt=attempt.attempt_id,
            segment=0,
            choice=0,
            first_index=first_index,
            token_ids=token_ids,
            # Counted by the engine, but not shown or billed before prompt caching is a feature.
            cached_tokens=0 if first_index == 0 else None,
            stop=stop,
            terminal=self._terminal(attempt, stop, now_ms) if stop else None,
        )

    def _terminal(self, attempt: Attempt, stop: Stop, now_ms: int) -> Terminal:
        return Terminal(
            stops=(stop,),
            stages=StageTimes(
                taken_ms=self.taken_ms,
                started_ms=attempt.started_ms,
                first_token_ms=attempt.first_token_ms or now_ms,
                finished_ms=now_ms,
            ),
            tokens=(ChoiceTokens(segment=0, choice=0, token_ids=tuple(attempt.tokens)),),
        )


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
    return Action.START
