"""One running child process: started in a session of its own, logged to a file, never left behind.

Owns the process from fork to reaping. Knows nothing of restarts (`keeper.py`) or order
(`supervisor.py`). A child gets SIGTERM from the kernel when the supervisor dies.
"""

import asyncio
import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from infra.errors import StartupError
from infra.supervisor import orphans
from infra.supervisor.priority import NORMAL
from infra.supervisor.probe import Probe
from schemas import limits

__all__ = ["Child", "ProcessSpec", "describe_exit", "die_with", "last_lines", "rotate"]

_PR_SET_PDEATHSIG = 1  # prctl(2)
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """How one process is started, asked and stopped."""

    name: str
    command: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)
    probe: Probe
    listen_fd: int | None = None
    stop_within_s: float = limits.DRAIN_STAGE_S
    loads_gently: bool = False
    """Whether a restart takes little of the processor until it is ready."""
    niceness: int = NORMAL
    """Nice value from when it was ready first, and of each restart."""


class Child:
    """A started process."""

    def __init__(self, spec: ProcessSpec, logs: Path, run: Path) -> None:
        """Start it. Raises StartupError where the program or the disk will not do."""
        self._spec, self._run = spec, run
        log_path = logs / f"{spec.name}.log"
        supervisor_pid = os.getpid()
        try:
            rotate(log_path)
            with log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    spec.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=dict(spec.environ),
                    pass_fds=() if spec.listen_fd is None else (spec.listen_fd,),
                    start_new_session=True,  # Ctrl-C reaches the supervisor only
                    preexec_fn=lambda: die_with(supervisor_pid),
                )
        except OSError as error:
            raise StartupError(f"cannot start {spec.name}: {error.strerror or error}") from error
        self._pidfd = os.pidfd_open(self._process.pid)
        try:
            orphans.record(run, spec.name, self._process.pid, spec.command)
        except OSError as error:
            self.kill()  # unrecorded, it could outlive us unseen
            self._process.wait()
            os.close(self._pidfd)
            raise StartupError(f"cannot record {spec.name}: {error.strerror or error}") from error

    @property
    def pid(self) -> int:
        """The process id, also of its session."""
        return self._process.pid

    async def wait(self) -> int:
        """Return its exit status once it has ended, after ending what it left in its session."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._pidfd, ended.set)  # readable once the process has ended
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._pidfd)
        # Before reaping, while the pid cannot be another's.
        orphans.signal_group(self.pid, signal.SIGKILL)
        status = self._process.wait()
        os.close(self._pidfd)
        orphans.forget(self._run, self._spec.name)
        return status

    def signal(self, number: signal.Signals) -> None:
        """Signal it; no effect where it has ended."""
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except OSError:
            pass  # it has ended, or its descriptor is closed because it has

    def kill(self) -> None:
        """End it and its whole session at once."""
        self.signal(signal.SIGKILL)


def rotate(path: Path) -> None:
    """Copy a full log file aside and empty it; the writer appends, so it goes on at the start.

    The file itself stays, since a running child holds it open. On a full disk its lines are given
    up: that frees room.
    """
    if not path.exists() or path.stat().st_size < limits.LOG_FILE_BYTES_MAX:
        return
    try:
        for number in range(limits.LOG_FILES_KEPT - 1, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            if older.exists():
                older.replace(path.with_name(f"{path.name}.{number + 1}"))
        shutil.copyfile(path, path.with_name(f"{path.name}.1"))
    except OSError:
        path.with_name(f"{path.name}.1").unlink(missing_ok=True)
    os.truncate(path, 0)


def last_lines(path: Path, count: int = 8) -> str:
    """Return the last lines of a log file, indented, to show why a process ended."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16_384))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(f"    {line[:300]}" for line in lines[-count:])


def describe_exit(status: int) -> str:
    """Return an exit status in words."""
    if status >= 0:
        return f"exit status {status}"
    return f"signal {signal.Signals(-status).name}"


def die_with(supervisor_pid: int) -> None:
    """Ask the kernel for SIGTERM when the supervisor dies; runs in the child before exec."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != supervisor_pid:
        os._exit(1)  # it died before the kernel was asked
