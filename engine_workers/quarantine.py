"""Poison: which requests may run beside others, which only alone, and which never again.

Owns the verdict (design rule 6.11). A request whose start ends the process takes everybody's work
down with it, again and again. What shows it is the log: starts of several workers, and no token
after any of them. Such a request is run alone, and when that worker ends too it is given up. Starts
by one and the same worker prove nothing: it lives. Nor do those of workers that were told to stop.
Carried out by `engine_workers.jobs`.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto

from engine_workers.job import Job, Phase
from schemas import limits
from schemas.fold import BarrenStart, ReplyFold

__all__ = ["Quarantine", "Verdict"]


class Verdict(Enum):
    """How a request may be started now."""

    BESIDE_OTHERS = auto()
    ALONE = auto()
    """Nothing else may run until its first token is accepted."""
    LATER = auto()
    """Another request runs alone now."""
    NEVER = auto()
    """It was alone when its worker ended."""


class Quarantine:
    """Who runs alone at one worker, and who waits for that."""

    def __init__(self, incarnation: str, was_told_to_stop: Callable[[str], bool]) -> None:
        self._incarnation = incarnation
        self._was_told_to_stop = was_told_to_stop
        self.alone: str | None = None
        """The id of the request that runs alone now."""

    def judge(self, job: Job, fold: ReplyFold) -> Verdict:
        """Return how a job with this complete, open fold may be started; note who is alone.

        Only workers other than this one count, whatever this one started did not end it; and only
        those that nobody told to stop.
        """
        before = self._ended(fold)
        if any(start.alone for start in before):
            return Verdict.NEVER
        job.suspect = len({start.worker for start in before}) >= limits.BARREN_STARTS_MAX
        if self.alone not in (None, job.request.request_id):
            job.phase = Phase.HELD
            return Verdict.LATER
        if not job.suspect:
            return Verdict.BESIDE_OTHERS
        self.alone = job.request.request_id
        return Verdict.ALONE

    def due(self, jobs: Mapping[str, Job], is_barren: Callable[[Job], bool]) -> list[Job]:
        """Return the held jobs to consider again: all, once nobody has to be alone any more.

        Suspects come first: the next one's turn would only stop those started before it.
        """
        alone = jobs.get(self.alone or "")
        runs = alone is not None and alone.phase in (Phase.STARTING, Phase.RUNNING)
        if alone is not None and runs and is_barren(alone):
            return []
        self.alone = None
        held = [job for job in jobs.values() if job.phase is Phase.HELD]
        return sorted(held, key=lambda job: not job.suspect)

    def message(self, fold: ReplyFold) -> str:
        """Return what client and operator are told of a request that is given up."""
        workers = len({start.worker for start in self._ended(fold)})
        return f"{workers} workers ended while they served the request; it was given up"

    def _ended(self, fold: ReplyFold) -> list[BarrenStart]:
        return [
            start
            for start in fold.barren
            if start.worker != self._incarnation and not self._was_told_to_stop(start.worker)
        ]
