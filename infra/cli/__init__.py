"""The `millstream` command. Each subcommand stands in a module of its own, imported when called."""

from infra.cli.group import main

__all__ = ["main"]
