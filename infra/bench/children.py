"""Processes that a bench starts: peers, load clients, the engine alone; each ends with the bench.

Owns their start, their line protocol and their end by process group. Called by the benches.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from infra.bench.plan import LoadPlan, LoadResult
from infra.errors import StartupError

__all__ = ["Child", "LoadClient", "start", "start_load", "start_module"]

Answer = TypeVar("Answer")

_STOP_WITHIN_S = 30.0
_LINE_BYTES_MAX = 1 << 26


class Child:
    """One started process, alone in its process group."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Tell whether it has not ended yet."""
        return self._process.returncode is None

    async def read_line(self, timeout_s: float) -> str:
        """Return its next line of output. Raises StartupError where it ends or is silent."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise StartupError(f"{self.name} says nothing; see {self._log}") from None
        if not line:
            raise StartupError(f"{self.name} ended; see {self._log}")
        return line.decode().strip()

    async def ask(self, question: object, kind: type[Answer], timeout_s: float) -> Answer:
        """Send one line of JSON and return the answer. Raises StartupError."""
        await self.write_line(msgspec.json.encode(question))
        return msgspec.json.decode(await self.read_line(timeout_s), type=kind)

    async def write_line(self, line: bytes) -> None:
        """Send one line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        await self._process.stdin.drain()

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the process and all it started."""
        for signal_number, wait_s in ((number, _STOP_WITHIN_S), (signal.SIGKILL, 5.0)):
            if self._process.returncode is not None:
                return
            try:
                os.killpg(self.pid, signal_number)
                async with asyncio.timeout(wait_s):
                    await self._process.wait()
            except (TimeoutError, ProcessLookupError):
                continue


class LoadClient(Child):
    """A load process: plans in, results out."""

    async def run(self, plan: LoadPlan, timeout_s: float = 600.0) -> LoadResult:
        """Carry out one plan."""
        return await self.ask(plan, LoadResult, timeout_s)

    async def hold(self, plan: LoadPlan, timeout_s: float = 600.0) -> int:
        """Open streams and return how many are held, until `leave`."""
        held = await self.ask(plan, dict[str, int], timeout_s)
        return held["held"]

    async def leave(self) -> None:
        """Make all held streams leave at once; returns when they have."""
        await self.write_line(b"")
        await self.read_line(60.0)

    async def result(self) -> LoadResult:
        """Return what the held streams met, after `leave`."""
        return msgspec.json.decode(await self.read_line(120.0), type=LoadResult)


async def start(
    name: str, command: Sequence[str], environ: Mapping[str, str], folder: Path
) -> Child:
    """Start a command; its errors go to a log file in the folder."""
    log = folder / f"{name}.log"
    return Child(name, await _spawn(command, environ, log), log)


async def start_module(
    name: str,
    module: str,
    environ: Mapping[str, str],
    folder: Path,
    arguments: Sequence[str] = (),
) -> Child:
    """Start a Python module of this environment."""
    return await start(name, (sys.executable, "-P", "-m", module, *arguments), environ, folder)


async def start_load(environ: Mapping[str, str], folder: Path) -> LoadClient:
    """Start a load client."""
    command = (sys.executable, "-P", "-m", "infra.bench.load")
    log = folder / "load.log"
    return LoadClient("load", await _spawn(command, environ, log), log)


async def _spawn(
    command: Sequence[str], environ: Mapping[str, str], log: Path
) -> asyncio.subprocess.Process:
    with log.open("ab") as errors:
        return await asyncio.create_subprocess_exec(
            *command,
            env=dict(environ),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            limit=_LINE_BYTES_MAX,
        )
