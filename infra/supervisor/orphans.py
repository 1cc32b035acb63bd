"""Processes that an earlier supervisor left behind: recorded at start, found by who comes next.

Owns DIR/run: one file per running child with its pid, start time, boot and command line. A process
is ours only if all four still match, never by its name. Ending them is `leftovers.py`'s.
"""

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Recorded", "alive", "forget", "is_ours", "left_behind", "record", "signal_group"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One process as it was started; also the leader of a session of its own."""

    name: str
    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat (proc(5)): ticks since boot."""
    boot_id: str
    command: tuple[str, ...]


def record(run_dir: Path, name: str, pid: int, command: Sequence[str]) -> None:
    """Write down a process that was just started; no effect where it has ended already."""
    start_ticks = _start_ticks(pid)
    if start_ticks is None:
        return
    entry = Recorded(
        name=name,
        pid=pid,
        start_ticks=start_ticks,
        boot_id=_boot_id(),
        command=tuple(command),
    )
    partial = run_dir / f".{name}.partial"
    partial.write_text(json.dumps(asdict(entry)))
    partial.replace(run_dir / f"{name}.json")


def forget(run_dir: Path, name: str) -> None:
    """Remove the record of a process that has ended."""
    (run_dir / f"{name}.json").unlink(missing_ok=True)


def left_behind(run_dir: Path) -> tuple[Recorded, ...]:
    """Return the recorded processes that still run; records of others are removed."""
    found = []
    for path in sorted(run_dir.glob("*.json")):
        try:
            fields = json.loads(path.read_text())
            entry = Recorded(**{**fields, "command": tuple(fields["command"])})
        except (ValueError, TypeError, KeyError, OSError):
            path.unlink(missing_ok=True)  # cut short by a crash; it names nobody
            continue
        if is_ours(entry):
            found.append(entry)
        else:
            path.unlink(missing_ok=True)
    return tuple(found)


def is_ours(entry: Recorded) -> bool:
    """Return whether that very process still runs, and not another one under its pid.

    Of the command the program and the last argument count: a process may have executed itself
    again with other flags of the interpreter.
    """
    command = _command(entry.pid)
    return alive(entry) and command[:1] + command[-1:] == entry.command[:1] + entry.command[-1:]


def alive(entry: Recorded) -> bool:
    """Return whether that process has not ended yet."""
    return entry.boot_id == _boot_id() and _start_ticks(entry.pid) == entry.start_ticks


def signal_group(leader_pid: int, number: signal.Signals) -> None:
    """Signal a session's processes; no effect where none is left."""
    try:
        os.killpg(leader_pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # all of them have ended


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _start_ticks(pid: int) -> int | None:
    """Return when a process started, or None where it has ended or is a zombie."""
    try:
        # The name stands in parentheses and may hold anything; what follows is fixed.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _command(pid: int) -> tuple[str, ...]:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(part.decode(errors="replace") for part in raw.split(b"\0")[:-1])
