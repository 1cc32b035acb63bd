"""`millstream logs`: shows and follows DIR/logs."""

import sys
import time
from pathlib import Path

import click

from infra.cli.settings import configuration, data_option
from infra.supervisor.folder import DataFolder

__all__ = ["command"]

_LOOK_EVERY_S = 0.25


@click.command("logs")
@click.argument("process", required=False)
@click.option("--follow", "-f", is_flag=True, show_envvar=True, help="Go on until Ctrl-C.")
@click.option("--lines", "-n", type=click.IntRange(0), default=50, show_envvar=True)
@data_option
def command(process: str | None, follow: bool, lines: int, data_dir: str | None) -> None:
    """Show the last lines of PROCESS (such as gateway-0), or of every process."""
    folder = DataFolder(configuration({"data_dir": data_dir}).data_dir).logs
    paths = [folder / f"{process}.log"] if process else sorted(folder.glob("*.log"))
    if not paths or not paths[0].exists():
        there = ", ".join(sorted(path.stem for path in folder.glob("*.log"))) or "none yet"
        click.echo(
            f"no log file of {process or 'any process'} in {folder}; there: {there}", err=True
        )
        sys.exit(1)
    prefixes = {path: "" if process else f"{path.stem:<11} | " for path in paths}
    positions = {path: _show_last(path, lines, prefixes[path]) for path in paths}
    while follow:
        time.sleep(_LOOK_EVERY_S)
        for path in paths:
            positions[path] = _show_new(path, positions[path], prefixes[path])


def _show_last(path: Path, lines: int, prefix: str) -> int:
    """Print the last lines; return the position up to which the file was read."""
    raw = path.read_bytes()
    shown = raw.decode(errors="replace").splitlines()
    for line in shown[max(0, len(shown) - lines) :]:
        click.echo(prefix + line)
    return len(raw)


def _show_new(path: Path, position: int, prefix: str) -> int:
    """Print whole lines written since `position`; a file that shrank was rotated: start over."""
    size = path.stat().st_size if path.exists() else 0
    if size == position:
        return position
    with path.open("rb") as file:
        file.seek(position if size > position else 0)
        start, raw = file.tell(), file.read()
    whole = raw[: raw.rfind(b"\n") + 1]
    for line in whole.decode(errors="replace").splitlines():
        click.echo(prefix + line)
    return start + len(whole)
