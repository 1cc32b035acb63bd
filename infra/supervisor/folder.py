"""The data folder of one platform: who may use it, of which version it is, what lies where.

Owns DIR/lock, DIR/VERSION and the layout of DIR. Called by the supervisor; of the commands `down`
takes the lock where no supervisor does, the others read only.
"""

import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from infra.errors import StartupError
from schemas import limits

__all__ = ["AlreadyRunning", "DataFolder", "holder_pid"]


class AlreadyRunning(StartupError):
    """Another supervisor uses this data folder."""


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Paths inside one data folder."""

    path: Path

    @property
    def logs(self) -> Path:
        """Log files, one per process."""
        return self.path / "logs"

    @property
    def run(self) -> Path:
        """Records of running children."""
        return self.path / "run"

    @property
    def secrets(self) -> Path:
        """Keys and passwords, readable by the owner only."""
        return self.path / "secrets"

    @property
    def state(self) -> Path:
        """What runs now, for the commands."""
        return self.path / "state.json"

    @property
    def lock(self) -> Path:
        """Held by the running supervisor; holds its pid."""
        return self.path / "lock"

    def open(self) -> int:
        """Take the folder, making it where it is new; return the descriptor of its lock.

        Raises: AlreadyRunning; StartupError where it is of another version, is not ours, cannot be
        written or its disk is full. Nothing is changed then.
        """
        try:
            return self._open()
        except OSError as error:
            raise StartupError(
                f"cannot use the data folder {self.path}: {error.strerror}"
            ) from error

    def hold(self) -> int:
        """Take the folder's lock and nothing else; return its descriptor.

        No pid stands in the lock then: who holds it is no supervisor, and not to be signalled.

        Raises: AlreadyRunning; OSError.
        """
        descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise AlreadyRunning(
                f"another millstream (pid {holder_pid(self) or 'unknown'}) runs on {self.path}: "
                "stop it with `millstream down`, or give --data another folder"
            ) from None
        os.truncate(descriptor, 0)
        return descriptor

    def check_space(self) -> None:
        """Raise StartupError where the disk is too full to start on."""
        free = shutil.disk_usage(self.path).free
        if free < limits.FREE_DISK_BYTES_MIN:
            raise StartupError(
                f"the disk of {self.path} has {free // limits.MIB} MiB free, "
                f"{limits.FREE_DISK_BYTES_MIN // limits.MIB} MiB are needed: make room, or give "
                "--data a folder on another disk"
            )

    def _open(self) -> int:
        fresh = not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir()))
        self._check_version(fresh)
        self.path.mkdir(parents=True, exist_ok=True)
        self.check_space()
        descriptor = self.hold()
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        for folder, mode in ((self.logs, 0o755), (self.run, 0o755), (self.secrets, 0o700)):
            folder.mkdir(mode=mode, exist_ok=True)
        (self.path / "VERSION").write_text(f"{limits.DATA_VERSION}\n")
        return descriptor

    def _check_version(self, fresh: bool) -> None:
        if fresh:
            return
        if not self.path.is_dir():
            raise StartupError(f"{self.path} is no folder: give --data another")
        marker = self.path / "VERSION"
        if not marker.exists():
            if {entry.name for entry in self.path.iterdir()} <= {"lock"}:
                return  # an earlier start stopped before it wrote anything
            raise StartupError(
                f"{self.path} holds something else (no VERSION file): give --data a new folder"
            )
        version = marker.read_text().strip()
        if version != str(limits.DATA_VERSION):
            raise StartupError(
                f"the data in {self.path} is of version {version}, this release reads version "
                f"{limits.DATA_VERSION}: start it with the release that wrote it, or give --data "
                "another folder"
            )


def holder_pid(folder: DataFolder) -> int | None:
    """Return the pid of the supervisor that holds the folder now, or None where nobody does."""
    try:
        descriptor = os.open(folder.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(descriptor)
    return None
