"""`millstream apply`: shows or makes what is missing of topics, schemas and tables."""

import sys

import click

from infra import apply
from infra.cli.settings import data_option, running, setting
from infra.config import variables

__all__ = ["command"]


@click.command("apply")
@click.option("--plan", "only_show", is_flag=True, show_envvar=True, help="Only show it.")
@data_option
@setting("--kafka", "kafka", "Kafka, where no platform runs here.", "HOST:PORT,...")
@setting("--clickhouse", "clickhouse_url", "ClickHouse, where no platform runs here.", "URL")
def command(only_show: bool, **flags: str | None) -> None:
    """Bring topics and tables to what this release needs; harmless to repeat."""
    arguments = ["--plan"] if only_show else []
    sys.exit(apply.main(arguments, variables(running(flags).config)))
