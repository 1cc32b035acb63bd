"""The whole platform on the memory log: a thousand seeds, replays, and planted bugs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.mutations import FIRST_SIX, MUTATIONS
from tests.sim.options import COMMIT_FAULTS, SEND_FAULTS
from tests.sim.runs import find, quiet, run_for, run_many, run_seed

ROOT = Path(__file__).resolve().parent.parent.parent
SOAK = os.environ.get("MILLSTREAM_SOAK") == "1"
SEEDS = 1_000
SOAK_S = 20 * 60.0
JOBS = min(os.cpu_count() or 1, 16 if SOAK else 4)
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
    "mailbox.overflow",
)
"""Every fault that a thousand seeds must have carried out."""


def test_a_thousand_seeds_keep_every_invariant(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever strikes, nothing is lost, doubled or billed wrongly, and all heals in time."""
    tally = run_for(SOAK_S, JOBS) if SOAK else run_many(range(SEEDS), JOBS)
    with capsys.disabled():
        print(f"\n{tally}")
    assert not tally.violations, "\n\n".join(
        f"python -m tests.sim --seed {outcome.options.seed}\n{outcome.options}\n{outcome.violation}"
        for outcome in tally.violations[:3]
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


@pytest.mark.parametrize("planted", MUTATIONS)
def test_a_planted_bug_is_found(planted: str) -> None:
    """A checker finds the bug within its time, and clears the same schedules without it."""
    quiet()
    outcome, seeds, cpu_s = find(planted, FOUND_WITHIN_CPU_S)
    assert outcome is not None, f"{seeds} seeds and {cpu_s:.0f} CPU s did not show {planted}"
    for seed in range(SOUND_SEEDS):
        sound = run_seed(seed, bias=MUTATIONS[planted].bias)
        assert sound.violation is None, f"{sound.options}\n{sound.violation}"


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
