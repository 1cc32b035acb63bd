"""The supervisor's decisions and files: restarts, data folder, orphans, secrets, ports, state."""

import os
import signal
import socket
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.errors import StartupError
from infra.supervisor import orphans
from infra.supervisor.child import describe_exit, last_lines, rotate
from infra.supervisor.credentials import obtain, read_secret
from infra.supervisor.folder import AlreadyRunning, DataFolder, holder_pid
from infra.supervisor.plan import kind_of
from infra.supervisor.restarts import Restarts, after_exit
from infra.supervisor.sockets import claim_port, free_port, listen
from infra.supervisor.state import Endpoints, PlatformState, ProcessEntry, read_state, write_state
from infra.system import SystemClock, SystemEntropy
from schemas import limits


def test_a_process_that_ran_well_starts_again_at_once() -> None:
    """After a long run the pause is the shortest, whatever happened before."""
    state = Restarts(total=5, in_a_row=5)
    after, pause_s = after_exit(state, 1_000.0, 500.0)
    assert (after.total, after.in_a_row, pause_s) == (6, 1, limits.RESTART_PAUSE_MIN_S)


def test_pauses_double_up_to_a_bound_and_then_it_is_given_up() -> None:
    """A process that ends at once waits longer each time and is given up within the window."""
    state, now_s, pauses = Restarts(), 0.0, []
    while True:
        state, pause_s = after_exit(state, now_s, 0.0)
        if pause_s is None:
            break
        pauses.append(pause_s)
        now_s += pause_s
    assert pauses[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert max(pauses) == limits.RESTART_PAUSE_MAX_S
    assert len(pauses) == limits.RESTARTS_PER_WINDOW_MAX
    assert now_s < limits.RESTART_WINDOW_S


def test_rare_exits_are_never_given_up() -> None:
    """Exits farther apart than the window leave no trace of earlier ones."""
    state = Restarts()
    for turn in range(100):
        state, pause_s = after_exit(state, turn * 61.0, 60.0)
        assert pause_s is not None
    assert state.total == 100


def test_a_second_supervisor_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    """The folder is taken by one process at a time; the refusal names its pid."""
    folder = DataFolder(tmp_path / "data")
    lock = folder.open()
    try:
        assert holder_pid(folder) == os.getpid()
        with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}"):
            folder.open()
    finally:
        os.close(lock)
    assert holder_pid(folder) is None
    os.close(folder.open())  # a lock file without a holder is no obstacle


def test_data_of_another_version_is_refused_by_name(tmp_path: Path) -> None:
    """A folder written by another format is refused, named with both versions and unchanged."""
    (tmp_path / "VERSION").write_text("99\n")
    with pytest.raises(StartupError, match="version 99, this release reads version 1"):
        DataFolder(tmp_path).open()
    assert [entry.name for entry in tmp_path.iterdir()] == ["VERSION"]


def test_a_folder_with_other_content_is_refused(tmp_path: Path) -> None:
    """A folder that holds something else is not taken over."""
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(StartupError, match="holds something else"):
        DataFolder(tmp_path).open()
    with pytest.raises(StartupError, match="no folder"):
        DataFolder(tmp_path / "thesis.tex").open()


def test_secrets_are_made_once_and_only_the_owner_reads_them(tmp_path: Path) -> None:
    """Secrets stay the same over starts, in files of mode 0600."""
    first = obtain(tmp_path, SystemEntropy(), SystemClock())
    assert obtain(tmp_path, SystemEntropy(), SystemClock()) == first
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    assert read_secret(tmp_path, "dev_key") == first.dev.secret
    assert first.dev.secret not in repr(first)
    assert (first.dev.created.admin, first.admin.created.admin) == (False, True)
    assert read_secret(tmp_path, "none") is None


def test_a_taken_port_is_named_with_its_flag() -> None:
    """The error about a taken port names port, address and the flag that changes it."""
    with listen("127.0.0.1", 0, "--port") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=f"port {port} on 127.0.0.1 is taken.*--kafka-port"):
            claim_port("127.0.0.1", port, "--kafka-port", SystemEntropy())


def test_port_zero_means_any_free_one() -> None:
    """Asked for port 0, a free port below the range of outgoing connections is chosen."""
    port = claim_port("127.0.0.1", 0, "--port", SystemEntropy())
    assert 10_000 <= port < 30_000
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free_port(SystemEntropy())))


def test_no_port_is_chosen_twice() -> None:
    """Nobody listens yet on a port that was chosen for another process: it is taken all the same,
    whoever draws it."""
    drawn = [free_port(SystemEntropy()) for _ in range(3)]
    entropy = Drawn([*(port - 10_000 for port in drawn), 11_111])
    assert free_port(entropy) not in drawn
    assert entropy.left == []


@dataclass
class Drawn(SystemEntropy):
    """Entropy whose bits were drawn before."""

    left: list[int]

    def bits(self, count: int) -> int:
        """Return the next number."""
        return self.left.pop(0)


def test_an_orphan_is_found_by_pid_start_time_and_command(tmp_path: Path) -> None:
    """A recorded process is ours only while it is that very process."""
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        while not (Path(f"/proc/{process.pid}/cmdline").read_bytes()).endswith(b"(60)\0"):
            pass  # until it has executed its program
        orphans.record(tmp_path, "fake", process.pid, command)
        (found,) = orphans.left_behind(tmp_path)
        assert (found.name, found.pid) == ("fake", process.pid)
        orphans.record(tmp_path, "other", process.pid, ["another", "program"])
        assert [entry.name for entry in orphans.left_behind(tmp_path)] == ["fake"]
        (tmp_path / "cut.json").write_text('{"name": "cut"')
        assert len(orphans.left_behind(tmp_path)) == 1
    finally:
        orphans.signal_group(process.pid, signal.SIGKILL)
        process.wait()
    assert orphans.left_behind(tmp_path) == ()
    assert list(tmp_path.glob("*.json")) == []


def test_a_full_log_file_moves_aside_and_goes_on_empty(tmp_path: Path) -> None:
    """Rotation keeps the newest files and leaves the open one in place."""
    path = tmp_path / "p.log"
    for turn in range(limits.LOG_FILES_KEPT + 2):
        with path.open("wb") as file:
            file.write(bytes([65 + turn]))
            file.truncate(limits.LOG_FILE_BYTES_MAX)
        rotate(path)
    assert path.stat().st_size == 0
    kept = sorted(entry.name for entry in tmp_path.iterdir())
    assert kept == ["p.log", *(f"p.log.{n}" for n in range(1, limits.LOG_FILES_KEPT + 1))]
    assert (tmp_path / "p.log.1").read_bytes()[:1] == bytes([65 + limits.LOG_FILES_KEPT + 1])


def test_state_survives_writing_and_reading(tmp_path: Path) -> None:
    """What the supervisor writes is what commands read; a cut file reads as none."""
    entry = ProcessEntry(
        name="kafka-0",
        pid=1,
        state="running",
        ready=True,
        restarts=0,
        health=None,
        probe=("127.0.0.1", 1, None),
    )
    endpoints = Endpoints(public="u", gateways=("g",), kafka="k:1", clickhouse="c")
    state = PlatformState(pid=1, ready=True, model="m", endpoints=endpoints, processes=(entry,))
    write_state(tmp_path / "state.json", state)
    assert read_state(tmp_path / "state.json") == state
    (tmp_path / "state.json").write_text('{"pid": 1')
    assert read_state(tmp_path / "state.json") is None


def test_exits_and_last_lines_are_shown_in_words(tmp_path: Path) -> None:
    """An exit status is named, and the end of a log file is quoted."""
    assert describe_exit(3) == "exit status 3"
    assert describe_exit(-9) == "signal SIGKILL"
    (tmp_path / "x.log").write_text("".join(f"line {n}\n" for n in range(20)))
    assert last_lines(tmp_path / "x.log", 2) == "    line 18\n    line 19"
    assert last_lines(tmp_path / "none.log") == ""


def test_kinds_follow_from_process_names() -> None:
    """Numbered processes share a kind; others are their own."""
    assert [kind_of(name) for name in ("worker-12", "stream-app", "metering")] == [
        "worker",
        "stream-app",
        "metering",
    ]
