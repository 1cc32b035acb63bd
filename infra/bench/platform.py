"""The whole platform as a bench sees it: started in a folder of its own, asked, stopped.

Owns the start by `millstream up`, the addresses and the process ids. Called by the benches.
"""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from infra.bench.children import Child, start
from infra.config import PREFIX
from infra.errors import StartupError
from infra.supervisor.state import read_state

__all__ = ["RunningPlatform", "clean_environ", "run_command", "running_platform"]

_READY_WITHIN_S = 180
_METRIC = re.compile(r"^millstream_(\w+?)(?:_total)?(?:\{[^}]*\})? ([0-9.e+-]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPlatform:
    """A ready platform."""

    data: Path
    host: str
    port: int
    """Of gateway-0's own address."""
    key: str
    model: str
    supervisor_pid: int
    environ: Mapping[str, str]

    @property
    def headers(self) -> dict[str, str]:
        """Headers of an API call."""
        return {"authorization": f"Bearer {self.key}"}

    def pids(self) -> dict[str, int]:
        """Return the processes' ids by name, as they are now."""
        state = read_state(self.data / "state.json")
        entries = state.processes if state else ()
        found = {entry.name: entry.pid for entry in entries if entry.pid is not None}
        return {**found, "supervisor": self.supervisor_pid}

    async def metrics(self, process: str) -> dict[str, float]:
        """Return a process's metrics by short name, series of one name added up."""
        state = read_state(self.data / "state.json")
        entries = state.processes if state else ()
        url = next((entry.health for entry in entries if entry.name == process), None)
        if url is None:
            return {}
        async with httpx.AsyncClient(trust_env=False, timeout=10, verify=False) as client:
            text = (await client.get(f"{url}/metrics")).text
        found: dict[str, float] = {}
        for name, value in _METRIC.findall(text):
            found[name] = found.get(name, 0.0) + float(value)
        return found


@asynccontextmanager
async def running_platform(
    folder: Path, environ: Mapping[str, str], *, engine: str, **settings: object
) -> AsyncIterator[RunningPlatform]:
    """Start a platform and stop it at the end. Raises StartupError.

    Args: `settings` are the configuration's, such as `runs_max=200`.
    """
    data = folder / "data"
    own = {f"{PREFIX}{name.upper()}": str(value) for name, value in settings.items()}
    child_environ = {**clean_environ(environ), **own}
    command = (
        *_millstream("up"),
        *("--data", str(data), "--engine", engine),
        *("--port", "0", "--kafka-port", "0", "--clickhouse-port", "0"),
    )
    supervisor = await start("up", command, child_environ, folder)
    drain = asyncio.create_task(_drain(supervisor))
    try:
        status = await _wait_ready(data, child_environ)
        address = urlsplit(status["endpoints"]["gateways"][0])
        assert address.hostname and address.port
        yield RunningPlatform(
            data=data,
            host=address.hostname,
            port=address.port,
            key=status["dev_key"],
            model=status["model"],
            supervisor_pid=supervisor.pid,
            environ=child_environ,
        )
    finally:
        drain.cancel()
        await run_command(("down", "--data", str(data)), child_environ)
        await supervisor.stop()


async def run_command(arguments: tuple[str, ...], environ: Mapping[str, str]) -> tuple[int, str]:
    """Run a `millstream` command; return its status and output."""
    process = await asyncio.create_subprocess_exec(
        *_millstream(*arguments),
        env=dict(environ),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


def clean_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without our own settings: a bench chooses them all."""
    return {name: value for name, value in environ.items() if not name.startswith(PREFIX)}


async def _wait_ready(data: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    arguments = ("status", "--data", str(data), "--json", "--wait", str(_READY_WITHIN_S))
    code, output = await run_command(arguments, environ)
    if code != 0:
        raise StartupError(f"the platform does not become ready; see {data}/logs")
    found = json.loads(output)
    assert isinstance(found, dict)
    return found


async def _drain(supervisor: Child) -> None:
    """Read what the supervisor says, so that it never waits for a reader."""
    while True:
        await supervisor.read_line(86_400)


def _millstream(*arguments: str) -> tuple[str, ...]:
    return (str(Path(sys.prefix) / "bin" / "millstream"), *arguments)
