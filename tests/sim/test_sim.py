"""The whole platform on the memory log: minutes of seeds, replays, planted bugs, shrinking."""

import os
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.sim.mutations import FIRST_SIX, MUTATIONS
from tests.sim.options import COMMIT_FAULTS, SEND_FAULTS
from tests.sim.runs import Found, quiet, run_for, run_seed, shrunk, start_searches
from tests.sim.shrink import invariant_of

ROOT = Path(__file__).resolve().parent.parent.parent
SOAK = os.environ.get("MILLSTREAM_SOAK") == "1"
RUN_S = (20 if SOAK else 4) * 60.0
JOBS = min(os.cpu_count() or 1, 16)
FOUND_WITHIN_CPU_S = 60.0
SOUND_SEEDS = 200 if SOAK else 2
"""How many seeds of each planted bug's schedule must be clean without the bug."""

COUNTERS = (
    *(f"send.{kind}" for kind in SEND_FAULTS),
    *(f"commit.{kind}" for kind in COMMIT_FAULTS),
    "send.collateral",
    "poll.stall",
    "poll.rebalance",
    "rebalance",
    "rebalance.twice",
    "crash.again",
    "drain.worker",
    "engine.stall",
    "crash.worker",
    "crash.gateway",
    "crash.metering",
    "pause.worker",
    "clock.skew",
    "clock.step",
    "store.slow",
    "store.unknown",
    "client.gone",
    "client.slow",
    "client.back",
    "client.again",
    "client.cancelled",
    "key.replayed",
    "key.reused",
    "mailbox.overflow",
)
"""Every fault that a few minutes must have carried out, and every manner of clients."""


def test_minutes_of_seeds_keep_every_invariant(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever strikes, nothing is lost, doubled or billed wrongly, and all heals in time."""
    tally = run_for(RUN_S, JOBS)
    with capsys.disabled():
        print(f"\n{tally}")
    assert not tally.violations, "\n\n".join(
        f"python -m tests.sim --seed {outcome.options.seed}\n{outcome.options}\n{outcome.violation}"
        for outcome in (*tally.violations[:2], *map(shrunk, tally.violations[:1]))
    )
    assert tally.requests_min >= 20
    assert tally.faults_median >= 3
    assert [name for name in COUNTERS if not tally.fired[name]] == []


@pytest.mark.parametrize("seed", [0, 7, 32])
def test_a_seed_replays_byte_for_byte_in_another_process(seed: int) -> None:
    """Two interpreters with different hash seeds tell the same story, event for event."""
    quiet()
    here = run_seed(seed)
    command = [sys.executable, "-m", "tests.sim", "--seed", str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": str(1_000 + seed)}
    there = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert f"trace {here.digest}: {here.events} events, {here.steps} steps" in there.stdout
    assert str(here.options) in there.stdout


@pytest.fixture(scope="module")
def searches() -> "dict[str, Future[Found]]":
    """Searches for all planted bugs, on all cores at once."""
    return start_searches(MUTATIONS, JOBS, FOUND_WITHIN_CPU_S, SOUND_SEEDS)


@pytest.mark.parametrize("planted", MUTATIONS)
def test_a_planted_bug_is_found(planted: str, searches: "dict[str, Future[Found]]") -> None:
    """A checker finds the bug within its time, and clears the same schedules without it."""
    search = searches[planted].result()
    assert search.outcome is not None, (
        f"not found by {search.seeds} seeds, {search.cpu_s:.0f} CPU s"
    )
    sound = search.unsound
    assert sound is None, f"{sound.options}\n{sound.violation}"


@pytest.mark.parametrize("planted", ["commit-too-early", "last-claim-wins"])
def test_a_failure_shrinks_to_a_short_list_of_events(planted: str) -> None:
    """What is left breaks the same invariant, with few clients, strikes and events."""
    quiet()
    failures = (run_seed(seed, planted) for seed in range(100))
    failure = next(outcome for outcome in failures if outcome.violation is not None)
    small = shrunk(failure, planted)
    assert invariant_of(small) == invariant_of(failure)
    assert len(small.options.only_clients or ()) <= 6
    assert small.options.only_strikes is not None and len(small.options.only_strikes) <= 6
    assert small.events <= min(120, failure.events)


def test_at_least_thirty_eight_bugs_are_planted() -> None:
    """The list does not shrink."""
    assert len(MUTATIONS) >= 38


def test_the_six_bugs_that_matter_most_are_planted() -> None:
    """Those that the platform's first promise rests on stand among the planted ones."""
    assert set(FIRST_SIX) == {
        "commit-too-early",
        "sink-without-dedup",
        "usage-at-the-acknowledgement",
        "superseded-attempt-counts",
        "published-before-the-own-start",
        "late-record-run",
    }
