"""Every fuzz target runs for a while without a crash, three at a time, from its stored corpus."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parent.parent.parent
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
SOAK = os.environ.get("MILLSTREAM_SOAK") == "1"
SECONDS = 600 if SOAK else 60
AT_ONCE = 3
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


def test_no_target_crashes(tmp_path: Path) -> None:
    """A minute of coverage-guided fuzzing of each finds no crash, no hang and no leak."""

    def fuzz(name: str) -> tuple[str, subprocess.CompletedProcess[str]]:
        command = [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(SECONDS)]
        done = subprocess.run(
            [*command, "--folder", str(tmp_path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SECONDS + 120,
            check=False,
        )
        return name, done

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, done in pool.map(fuzz, TARGETS):
            assert done.returncode == 0, f"{name}\n{done.stderr[-3_000:]}"
            runs = re.search(r"stat::number_of_executed_units:\s+(\d+)", done.stderr)
            assert runs and int(runs[1]) >= RUNS_MIN, f"{name}\n{done.stderr[-1_000:]}"
