"""From flags and environment to a Config, and from a data folder to the platform running on it.

Owns how flags become MILLSTREAM_* settings, so that `infra/config.py` alone casts and checks them.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from infra.cli.group import COMMANDS
from infra.config import PREFIX, Config, load
from infra.errors import StartupError
from infra.supervisor.credentials import read_secret
from infra.supervisor.folder import DataFolder, holder_pid
from infra.supervisor.orphans import left_behind
from infra.supervisor.state import PlatformState, read_state

__all__ = ["Running", "configuration", "data_option", "external_settings", "running", "setting"]

Command = TypeVar("Command", bound=Callable[..., Any])


def setting(
    flag: str, name: str, help_text: str, metavar: str | None = None, default: str | None = None
) -> Callable[[Command], Command]:
    """Return a click option that sets the configuration's `name`; config casts and checks it.

    `default` says what happens without it, where that is not the configuration's own.
    """
    own = next(item.default for item in dataclasses.fields(Config) if item.name == name)
    shown = f"{help_text}  [default: {default or own}]" if default or own else help_text
    return click.option(
        flag,
        name,
        envvar=PREFIX + name.upper(),
        show_envvar=True,
        show_default=False,
        default=None,
        metavar=metavar,
        help=shown,
    )


data_option = click.option(
    "--data",
    "data_dir",
    envvar=PREFIX + "DATA_DIR",
    show_envvar=True,
    metavar="DIR",
    default=None,
    help="Data folder.  [default: .millstream]",
)


def configuration(flags: Mapping[str, str | None]) -> Config:
    """Build the configuration from the environment and the given flags. Raises ConfigError."""
    return load(_environ(flags))


def external_settings(flags: Mapping[str, str | None]) -> frozenset[str]:
    """Return which of `kafka` and `clickhouse_url` were given, and so are not to be embedded."""
    environ = _environ(flags)
    return frozenset(
        name for name in ("kafka", "clickhouse_url") if PREFIX + name.upper() in environ
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A running platform as the commands see it."""

    config: Config
    """With the addresses and secrets of the platform."""
    folder: DataFolder
    state: PlatformState | None
    """None where only addresses were given."""


def running(flags: Mapping[str, str | None]) -> Running:
    """Find the platform that runs on the data folder, or the one whose addresses are given.

    Raises: ConfigError; StartupError where none runs.
    """
    config, folder = configuration(flags), DataFolder(configuration(flags).data_dir)
    state = read_state(folder.state)
    if state is None or holder_pid(folder) != state.pid:
        if config.url or "kafka" in external_settings(flags):
            return Running(config=config, folder=folder, state=None)
        raise StartupError(_why_none(folder))
    locator_key = config.locator_key.hex() or read_secret(folder.secrets, "locator_key") or ""
    config = dataclasses.replace(
        config,
        kafka=state.endpoints.kafka,
        clickhouse_url=state.endpoints.clickhouse,
        clickhouse_password=config.clickhouse_password
        or read_secret(folder.secrets, "clickhouse_password")
        or "",
        locator_key=bytes.fromhex(locator_key),
        url=config.url or state.endpoints.public,
        key=config.key or read_secret(folder.secrets, "dev_key") or "",
        model=state.model,
    )
    return Running(config=config, folder=folder, state=state)


def _why_none(folder: DataFolder) -> str:
    command = f"`millstream up --data {folder.path}`"
    left = [entry.name for entry in left_behind(folder.run)]
    if left:
        return (
            f"the supervisor of {folder.path} has ended and left {', '.join(left)} running: "
            f"{command} ends them and starts anew, `millstream down` only ends them"
        )
    return (
        f"no platform runs on {folder.path}: start one with {command}, or name the right folder "
        "with --data"
    )


def _environ(flags: Mapping[str, str | None]) -> dict[str, str]:
    """Return the environment with the given flags laid over it.

    Variables of commands' own flags (such as MILLSTREAM_STATUS_WAIT) are click's, not settings.
    """
    own = tuple(f"{PREFIX}{name.upper()}_" for name in COMMANDS)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    given = {PREFIX + name.upper(): value for name, value in flags.items() if value is not None}
    return {**kept, **given}
