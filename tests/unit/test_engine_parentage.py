"""Processes of an engine do not outlive their worker."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PARENT = """
import multiprocessing, os, time
from engine_workers.engine.parentage import die_with_parent
def child():
    die_with_parent()
    print(os.getpid(), flush=True)
    time.sleep(60)
if __name__ == "__main__":
    die_with_parent()  # nobody's child: goes on
    multiprocessing.get_context("spawn").Process(target=child).start()
    time.sleep(60)
"""


def test_a_child_ends_with_its_killed_parent(tmp_path: Path) -> None:
    """After kill -9 of the parent the child is gone within a moment."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    assert parent.stdout is not None
    try:
        child = int(parent.stdout.readline())
        assert Path(f"/proc/{child}").exists()
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
    until_s = time.monotonic() + 5
    while _runs(child):
        assert time.monotonic() < until_s, "the child outlives its parent"
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
