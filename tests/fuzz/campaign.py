"""All fuzz targets for a while each: `python -m tests.fuzz.campaign FOLDER SECONDS`.

Owns the processes: half as many as there are cores at a time, of the lowest priority, so they may
run beside other tests. A process of its own starts them, because the kernel counts the memory of
who starts a process towards the peak that libFuzzer bounds (`setmax_mm_hiwater_rss` in its `exec`).
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.fuzz.targets import TARGETS

__all__ = ["Campaign"]

ROOT = Path(__file__).parent.parent.parent
AT_ONCE = max(1, (os.cpu_count() or 1) // 2)
START_WITHIN_S = 120

Ended = tuple[int, str]
"""The exit status of a target's process, and what it said."""


class Campaign:
    """The runs of all targets, started at once."""

    def __init__(self, seconds: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="millstream-fuzz-")
        command = [sys.executable, "-m", "tests.fuzz.campaign", self._folder.name, str(seconds)]
        self._process = subprocess.Popen(["nice", "-n", "19", *command], cwd=ROOT, process_group=0)

    def results(self) -> Iterator[tuple[str, Ended]]:
        """Yield each target with how its process ended, once all have."""
        assert self._process.wait() == 0
        for name in TARGETS:
            status, said = json.loads(_result_of(Path(self._folder.name), name).read_text())
            yield name, (status, said)

    def close(self) -> None:
        """End what still runs, and start nothing more."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._folder.cleanup()


def _result_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def _run(folder: Path, seconds: int, name: str) -> None:
    command = [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(seconds)]
    done = subprocess.run(
        [*command, "--folder", str(folder)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=seconds + START_WITHIN_S,
        check=False,
    )
    _result_of(folder, name).write_text(json.dumps((done.returncode, done.stderr)))


def main() -> None:
    """Run all targets; how each ended stands in the folder."""
    run = partial(_run, Path(sys.argv[1]), int(sys.argv[2]))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(run, TARGETS))


if __name__ == "__main__":
    main()
