"""The command group: which subcommands there are, and what is printed when one fails.

Owns exit statuses: 0 well, 1 not so, 2 wrong use or cannot start. Subcommands raise typed errors.
"""

import importlib
import sys

import click

from infra.errors import ConfigError, InfraError, StartupError

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "up": "infra.cli.up",
    "status": "infra.cli.status",
    "down": "infra.cli.down",
    "ask": "infra.cli.ask",
    "keys": "infra.cli.keys",
    "limits": "infra.cli.limits",
    "logs": "infra.cli.logs",
    "audit": "infra.cli.audit",
    "apply": "infra.cli.apply",
    "bench": "infra.cli.bench",
}
"""Module of each subcommand; its click command is the attribute `command`."""


class _LazyGroup(click.Group):
    """Imports a subcommand only when called, so that `status` does not load Kafka's client."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found = importlib.import_module(COMMANDS[cmd_name]).command
        assert isinstance(found, click.Command)
        return found


@click.command(
    cls=_LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "show_default": True,
        "auto_envvar_prefix": "MILLSTREAM",
    },
)
@click.version_option(package_name="millstream")
def group() -> None:
    """An LLM API platform built on a log.

    Start it with `millstream up`, ask it with `millstream ask "PROMPT"`, stop it with Ctrl-C.
    """


def main() -> None:
    """Run the command line; never returns."""
    try:
        sys.exit(group.main(standalone_mode=False) or 0)
    except click.exceptions.Exit as leave:
        sys.exit(leave.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except (StartupError, ConfigError) as error:
        click.echo(f"millstream: {error}", err=True)
        sys.exit(2)
    except InfraError as error:
        click.echo(
            f"millstream: {error}\n`millstream status` and `millstream logs` show what is wrong.",
            err=True,
        )
        sys.exit(1)
