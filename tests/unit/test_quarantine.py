"""Who may run beside others, by the starts that the log shows (design rule 6.11)."""

from engine_workers.job import Job, Phase
from engine_workers.quarantine import Quarantine, Verdict
from schemas.fold import ReplyFold
from schemas.replies import Delta, Start
from tests.builders import delta, request, start

OTHER_ID = "00000000-0000-4000-8000-000000000002"


def folded(*facts: Start | Delta) -> ReplyFold:
    """Return the fold of these facts."""
    fold = ReplyFold()
    for fact in facts:
        fold.apply(fact, 0)
    return fold


def job(request_id: str = "", phase: Phase = Phase.SCANNING) -> Job:
    """Return a job in a phase."""
    return Job(
        request=request(request_id) if request_id else request(),
        lane=0,
        append_time_ms=0,
        taken_ms=0,
        offsets=[0],
        phase=phase,
    )


def starts(*workers: str) -> list[Start]:
    """Return one start by each worker."""
    return [start(f"attempt-{worker}", worker=worker) for worker in workers]


def judging(incarnation: str, *told_to_stop: str) -> Quarantine:
    """Return the quarantine of a worker that knows who was told to stop."""
    return Quarantine(incarnation, told_to_stop.__contains__)


def test_two_workers_that_ended_prove_nothing() -> None:
    """A request whose starts were in vain twice runs beside others, as does a fresh one."""
    quarantine = judging("w/9")
    assert quarantine.judge(job(), folded()) is Verdict.BESIDE_OTHERS
    assert quarantine.judge(job(), folded(*starts("w/1", "w/2"))) is Verdict.BESIDE_OTHERS


def test_three_workers_that_ended_make_a_suspect() -> None:
    """It runs alone; whoever comes meanwhile waits, another suspect too."""
    quarantine = judging("w/9")
    suspect, other, second = job(), job(OTHER_ID), job("00000000-0000-4000-8000-000000000003")
    ended = folded(*starts("w/1", "w/2", "w/3"))
    assert quarantine.judge(suspect, ended) is Verdict.ALONE
    assert quarantine.judge(other, folded()) is Verdict.LATER
    assert quarantine.judge(second, ended) is Verdict.LATER
    assert (other.phase, other.suspect, second.suspect) == (Phase.HELD, False, True)
    jobs = {each.request.request_id: each for each in (suspect, other, second)}
    suspect.phase = Phase.RUNNING
    assert quarantine.due(jobs, lambda _: True) == []
    assert quarantine.due(jobs, lambda _: False) == [second, other]
    assert quarantine.alone is None


def test_own_starts_and_a_workers_repeats_do_not_count() -> None:
    """A worker that starts again lives, so its start ended nobody: doubts make no suspects."""
    fold = folded(*starts("w/1", "w/2", "w/9", "w/2", "w/9"))
    assert judging("w/9").judge(job(), fold) is Verdict.BESIDE_OTHERS


def test_workers_that_were_told_to_stop_do_not_count() -> None:
    """A drained worker ended by a command: its start makes no suspect and gives nothing up."""
    beside = folded(*starts("w/1", "w/2", "w/3"))
    assert judging("w/9", "w/2").judge(job(), beside) is Verdict.BESIDE_OTHERS
    alone = folded(*starts("w/1", "w/2", "w/3"), start("d", worker="w/4", alone=True))
    assert judging("w/9", "w/4").judge(job(), alone) is Verdict.ALONE
    assert judging("w/9", "w/2").judge(job(), alone) is Verdict.NEVER


def test_an_accepted_token_clears_everything() -> None:
    """What made progress is no poison, however many workers have died over it."""
    fold = folded(*starts("w/1", "w/2", "w/3", "w/4"), delta(0, 5, attempt="attempt-w/4"))
    assert judging("w/9").judge(job(), fold) is Verdict.BESIDE_OTHERS


def test_a_worker_that_ended_over_it_alone_is_the_last() -> None:
    """Only starts while alone give a request up, and only those of others."""
    fold = folded(*starts("w/1", "w/2", "w/3"), start("d", worker="w/4", alone=True))
    assert judging("w/9").judge(job(), fold) is Verdict.NEVER
    assert judging("w/4").judge(job(), fold) is Verdict.ALONE
    many = folded(*starts("w/1", "w/2", "w/3", "w/5", "w/6", "w/7"))
    assert judging("w/9").judge(job(), many) is Verdict.ALONE


def test_a_suspect_that_no_longer_runs_releases_the_others() -> None:
    """Its end, its doubt or the loss of its lane let the held ones go on."""
    quarantine = judging("w/9")
    suspect, other = job(), job(OTHER_ID)
    assert quarantine.judge(suspect, folded(*starts("w/1", "w/2", "w/3"))) is Verdict.ALONE
    quarantine.judge(other, folded())
    assert quarantine.due({OTHER_ID: other}, lambda _: True) == [other]
