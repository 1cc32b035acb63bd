"""The embedded ClickHouse as a child process, for tests of several folders."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

USER = "millstream"
PASSWORD = "pass'word"


class FrontProcess:
    """`python -m infra.clickhouse` on a free port and a folder; ready when entered, gone when
    left."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self._folder = folder
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers."""
        environment = {
            "PATH": os.environ["PATH"],
            "MILLSTREAM_PROCESS": "clickhouse",
            "MILLSTREAM_DATA_DIR": str(self._folder),
            "MILLSTREAM_CLICKHOUSE_URL": self.url,
            "MILLSTREAM_CLICKHOUSE_USER": USER,
            "MILLSTREAM_CLICKHOUSE_PASSWORD": PASSWORD,
        }
        with (self._folder / "front.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "infra.clickhouse"],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait_ready()

    def kill(self) -> None:
        """Kill it as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)

    def stop(self) -> int:
        """Ask it to stop; return its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(20)

    def log(self) -> str:
        """Return what it wrote so far."""
        return (self._folder / "front.log").read_text()

    def _wait_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"clickhouse ended: {self.log()}")
            try:
                with urllib.request.urlopen(f"{self.url}/ping", timeout=2):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.05)
        raise TimeoutError(f"clickhouse is not ready: {self.log()}")

    def __enter__(self) -> "FrontProcess":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
