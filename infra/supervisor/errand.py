"""A process that runs once to its end during start: model preparation, `apply`, the first keys.

Its standard output is shown as progress, its standard error goes to its log file. It ends with the
supervisor, and when the start is called off.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence

from infra.errors import StartupError
from infra.supervisor import orphans
from infra.supervisor.child import describe_exit, die_with, last_lines, rotate
from infra.supervisor.folder import DataFolder
from schemas import limits

__all__ = ["run_errand"]


async def run_errand(
    name: str,
    command: Sequence[str],
    environ: Mapping[str, str],
    folder: DataFolder,
    say: Callable[[str], None],
) -> None:
    """Run `command` to its end.

    Raises: StartupError with its last lines where it fails.
    """
    log_path = folder.logs / f"{name}.log"
    rotate(log_path)
    supervisor_pid = os.getpid()
    with log_path.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=dict(environ),
            start_new_session=True,
            preexec_fn=lambda: die_with(supervisor_pid),
        )
    orphans.record(folder.run, name, process.pid, command)
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            say(line.decode(errors="replace").rstrip())
        status = await process.wait()
    except asyncio.CancelledError:
        await _end(process)
        raise
    finally:
        orphans.forget(folder.run, name)
    if status != 0:
        raise StartupError(
            f"{name} failed with {describe_exit(status)}; its last lines (all: {log_path}):\n"
            + last_lines(log_path)
        )


async def _end(process: asyncio.subprocess.Process) -> None:
    """End it and what it started, within a bound."""
    try:
        process.terminate()
        async with asyncio.timeout(limits.HURRIED_STAGE_S):
            await process.wait()
    except (ProcessLookupError, TimeoutError):
        pass  # it has ended, or will now
    orphans.signal_group(process.pid, signal.SIGKILL)
