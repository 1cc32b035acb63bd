"""Every fuzz target runs for a while without a crash, from its stored corpus."""

import re
from pathlib import Path

from tests.fuzz.campaign import Campaign
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
CORPUS_BYTES_MAX = 64 * 1_024
RUNS_MIN = 1_000


def test_the_stored_corpus_is_small_and_passes() -> None:
    """Each target has inputs to start from, all together small, and reads every one of them."""
    total = 0
    for name, target in TARGETS.items():
        inputs = sorted((CORPUS / name).iterdir())
        assert inputs, name
        for path in inputs:
            data = path.read_bytes()
            total += len(data)
            target(data)
    assert total <= CORPUS_BYTES_MAX


def test_no_target_crashes(campaign: Campaign) -> None:
    """A minute of coverage-guided fuzzing of each finds no crash, no hang and no leak."""
    for name, (status, said) in campaign.results():
        assert status == 0, f"{name}\n{said[-3_000:]}"
        runs = re.search(r"stat::number_of_executed_units:\s+(\d+)", said)
        assert runs and int(runs[1]) >= RUNS_MIN, f"{name}\n{said[-1_000:]}"
