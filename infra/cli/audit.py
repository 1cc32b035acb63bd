"""`millstream audit`: compares what is in the log with ClickHouse; exit 1 on any difference."""

import sys

import click

from infra import audit
from infra.cli.settings import data_option, running, setting
from schemas.ids import InvalidId

__all__ = ["command"]


@click.command("audit")
@click.option("--json", "as_json", is_flag=True, show_envvar=True, help="Print one JSON object.")
@click.option("--request", metavar="ANY_ID", show_envvar=True, help="Explain this request too.")
@data_option
@setting("--kafka", "kafka", "Kafka, where no platform runs here.", "HOST:PORT,...")
@setting("--clickhouse", "clickhouse_url", "ClickHouse, where no platform runs here.", "URL")
def command(as_json: bool, request: str | None, **flags: str | None) -> None:
    """Prove that usage is exact: log against ClickHouse, to the token.

    Waits, within a bound, until ClickHouse holds what the log held when it began.
    """
    try:
        report = audit.run(running(flags).config, request)
    except InvalidId as error:
        raise click.BadParameter(str(error), param_hint="--request") from error
    click.echo(report.to_json() if as_json else report.render())
    sys.exit(report.exit_code)
