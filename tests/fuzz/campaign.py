"""All fuzz targets for a while each, on cores that other tests leave idle.

Owns the processes: each one core at the lowest priority, so they may run while other tests do.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tests.fuzz.targets import TARGETS

__all__ = ["Campaign"]

ROOT = Path(__file__).parent.parent.parent
AT_ONCE = max(1, (os.cpu_count() or 1) // 2)
START_WITHIN_S = 120

Ended = tuple[int, str]
"""The exit status of a target's process, and what it said."""


class Campaign:
    """The runs of all targets, started at once, half as many at a time as there are cores."""

    def __init__(self, seconds: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="millstream-fuzz-")
        self._seconds = seconds
        self._children: list[subprocess.Popen[str]] = []
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._runs: dict[str, Future[Ended]] = {
            name: self._pool.submit(self._run, name) for name in TARGETS
        }

    def results(self) -> Iterator[tuple[str, Ended]]:
        """Yield each target with how its process ended, once it has."""
        for name, run in self._runs.items():
            yield name, run.result()

    def close(self) -> None:
        """End what still runs, and start nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for child in self._children:
            child.kill()
        self._pool.shutdown()
        self._folder.cleanup()

    def _run(self, name: str) -> Ended:
        command = [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(self._seconds)]
        with subprocess.Popen(
            ["nice", "-n", "19", *command, "--folder", self._folder.name],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as child:
            self._children.append(child)
            _, said = child.communicate(timeout=self._seconds + START_WITHIN_S)
            return child.returncode, said
