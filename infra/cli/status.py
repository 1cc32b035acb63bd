"""`millstream status`: what runs, asked live."""

import asyncio
import dataclasses
import json
import sys
from collections.abc import Mapping
from typing import Any

import click

from infra.cli.settings import Running, data_option, running
from infra.errors import StartupError
from infra.ports import Clock
from infra.supervisor.credentials import read_secret
from infra.supervisor.probe import Probe, answers
from infra.supervisor.state import PlatformState
from infra.system import SystemClock

__all__ = ["command", "describe", "look"]

_AGAIN_AFTER_S = 0.25
_LATE = "stream-app"  # requests are served without it; it follows within seconds


@click.command("status")
@data_option
@click.option("--wait", type=click.FloatRange(0), default=0, metavar="SECONDS", show_envvar=True)
@click.option("--json", "as_json", is_flag=True, show_envvar=True, help="Print one JSON object.")
def command(data_dir: str | None, wait: float, as_json: bool) -> None:
    """Show what runs; exit 0 when requests can be served.

    --wait gives a starting platform that long to become ready.
    """
    found = asyncio.run(_look_until_ready({"data_dir": data_dir}, wait, SystemClock()))
    if as_json:
        click.echo(json.dumps(describe(*found) if found else {"ready": False, "processes": []}))
    elif found is None:
        running({"data_dir": data_dir})  # says why there is nothing to show
    else:
        _print(*found)
    if not (found and found[1].ready):
        if not as_json:
            click.echo("not ready: see `millstream logs`, or wait with --wait SECONDS", err=True)
        sys.exit(1)


async def _look_until_ready(
    flags: Mapping[str, str | None], wait_s: float, clock: Clock
) -> tuple[Running, PlatformState] | None:
    deadline_s = clock.monotonic_s() + wait_s
    while True:
        found = await _look_once(flags)
        if (found and found[1].ready) or clock.monotonic_s() >= deadline_s:
            return found
        await asyncio.sleep(_AGAIN_AFTER_S)


async def _look_once(flags: Mapping[str, str | None]) -> tuple[Running, PlatformState] | None:
    try:
        platform = running(flags)
    except StartupError:
        return None
    if platform.state is None:
        return None
    return platform, await look(platform.state)


async def look(state: PlatformState) -> PlatformState:
    """Return the state with each process's readiness as it is now."""
    found = await asyncio.gather(
        *(
            answers(Probe(host=entry.probe[0], port=entry.probe[1], path=entry.probe[2]))
            for entry in state.processes
        )
    )
    entries = tuple(
        dataclasses.replace(entry, ready=ready and entry.pid is not None)
        for entry, ready in zip(state.processes, found, strict=True)
    )
    ready = state.ready and all(entry.ready for entry in entries if entry.name != _LATE)
    return dataclasses.replace(state, processes=entries, ready=ready)


def describe(platform: Running, state: PlatformState) -> dict[str, Any]:
    """Return what `--json` prints."""
    return {
        "ready": state.ready,
        "endpoints": dataclasses.asdict(state.endpoints),
        "dev_key": read_secret(platform.folder.secrets, "dev_key"),
        "model": state.model,
        "processes": [
            {
                "name": entry.name,
                "pid": entry.pid,
                "state": entry.state,
                "ready": entry.ready,
                "restarts": entry.restarts,
                "health": entry.health and f"{entry.health}/health",
                "metrics": entry.health and f"{entry.health}/metrics",
            }
            for entry in state.processes
        ],
    }


def _print(platform: Running, state: PlatformState) -> None:
    click.echo("ready" if state.ready else "not ready")
    click.echo(f"  url         {state.endpoints.public}")
    click.echo(f"  key         {read_secret(platform.folder.secrets, 'dev_key')}")
    click.echo(f"  kafka       {state.endpoints.kafka}")
    click.echo(f"  clickhouse  {state.endpoints.clickhouse}")
    for entry in state.processes:
        ready = "ready" if entry.ready else "not ready"
        restarts = f", {entry.restarts} restarts" if entry.restarts else ""
        click.echo(f"  {entry.name:<11} {entry.state}, {ready}, pid {entry.pid}{restarts}")
