"""`millstream down`: asks the supervisor of a data folder to drain and waits for its end.

Where the supervisor was killed, it ends what that left behind, as the next `up` would.
"""

import asyncio
import os
import signal
import sys
import time

import click

from infra.cli.settings import configuration, data_option
from infra.supervisor.folder import DataFolder, holder_pid
from infra.supervisor.leftovers import end_leftovers, listed
from infra.supervisor.orphans import left_behind

__all__ = ["command"]

_LOOK_EVERY_S = 0.1


@click.command("down")
@data_option
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=150,
    metavar="SECONDS",
    show_envvar=True,
    help="How long to wait for its end.",
)
def command(data_dir: str | None, wait: float) -> None:
    """Drain the platform on a data folder and stop it."""
    folder = DataFolder(configuration({"data_dir": data_dir}).data_dir)
    pid = holder_pid(folder)
    if pid is not None:
        _drain(folder, pid, wait)
    elif not left_behind(folder.run):
        click.echo(f"no platform runs on {folder.path}")
        return
    if left_behind(folder.run):  # also where the supervisor was killed while it drained
        _end_leftovers(folder)
    click.echo("stopped")


def _drain(folder: DataFolder, pid: int, wait_s: float) -> None:
    """Ask the supervisor to drain, and return once it has ended; exit 1 past the bound."""
    click.echo(f"draining (pid {pid})")
    os.kill(pid, signal.SIGTERM)
    for _ in range(int(wait_s / _LOOK_EVERY_S)):
        if holder_pid(folder) != pid:
            return
        time.sleep(_LOOK_EVERY_S)
    click.echo(
        f"still draining after {wait_s:g} s: see `millstream logs supervisor`, wait on, or cut it "
        "short with a second `millstream down`",
        err=True,
    )
    sys.exit(1)


def _end_leftovers(folder: DataFolder) -> None:
    """End what runs without its supervisor; exit 1 where something cannot be ended.

    Raises: AlreadyRunning where a supervisor has started meanwhile.
    """
    lock = folder.hold()
    try:
        remaining = asyncio.run(end_leftovers(folder.run, click.echo))
        if not remaining:
            folder.state.unlink(missing_ok=True)
    finally:
        os.close(lock)
    if remaining:
        click.echo(f"cannot be ended: {listed(remaining)}; end it by hand", err=True)
        sys.exit(1)
