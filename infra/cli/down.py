"""`millstream down`: asks the supervisor of a data folder to drain and waits for its end."""

import os
import signal
import sys
import time

import click

from infra.cli.settings import configuration, data_option
from infra.supervisor.folder import DataFolder, holder_pid

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
    if pid is None:
        click.echo(f"no platform runs on {folder.path}")
        return
    click.echo(f"draining (pid {pid})")
    os.kill(pid, signal.SIGTERM)
    for _ in range(int(wait / _LOOK_EVERY_S)):
        if holder_pid(folder) != pid:
            click.echo("stopped")
            return
        time.sleep(_LOOK_EVERY_S)
    click.echo(
        f"still draining after {wait:g} s: see `millstream logs supervisor`, wait on, or cut it "
        "short with a second `millstream down`",
        err=True,
    )
    sys.exit(1)
