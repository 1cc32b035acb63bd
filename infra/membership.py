"""Which consumer group a process is a member of, noted in a file for whoever sees it die.

Owns DIR/run/PROCESS.member: written by a worker each time it joins, removed when it leaves, taken
by the supervisor when the process ends without leaving (`infra/supervisor/death_notice.py`). A
member id is unique to one join, so that an old note can never name the process that came after.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Membership", "forget", "left_behind", "note", "path_of", "take"]

_SUFFIX = ".member"


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """One member of one consumer group."""

    group: str
    member_id: str


def path_of(data_dir: Path, process: str) -> Path:
    """Return where the membership of a process is noted."""
    return data_dir / "run" / f"{process}{_SUFFIX}"


def note(path: Path, membership: Membership) -> None:
    """Write a membership down, over an older one.

    No effect where the folder is missing or read-only: then no supervisor runs here, and others
    learn of a death by the session time-out.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(json.dumps(asdict(membership)))
        partial.replace(path)
    except OSError:
        return


def forget(path: Path) -> None:
    """Remove the note of a member that has left its group."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # as in `note`


def take(path: Path) -> Membership | None:
    """Return what is noted and remove it; None where nothing is, or nothing readable."""
    try:
        text = path.read_text()
        path.unlink(missing_ok=True)
        return Membership(**json.loads(text))
    except (OSError, ValueError, TypeError):
        return None


def left_behind(run_dir: Path) -> tuple[str, ...]:
    """Return the processes whose notes lie here, such as after a crash of everything."""
    return tuple(sorted(path.name.removesuffix(_SUFFIX) for path in run_dir.glob(f"*{_SUFFIX}")))
