"""`millstream up`: the composition root of the supervisor."""

import asyncio
import dataclasses
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from infra.cli.settings import configuration, data_option, external_settings, setting
from infra.config import DEFAULT_MODEL, Config
from infra.errors import ConfigError, StartupError
from infra.logs import configure
from infra.supervisor.child import rotate
from infra.supervisor.folder import DataFolder
from infra.supervisor.startup import External
from infra.supervisor.supervisor import SupervisorDeps, supervise
from infra.system import SystemClock, SystemEntropy

__all__ = ["command", "with_model"]


@click.command("up")
@data_option
@setting("--engine", "engine", "vllm, or scripted for trying the platform without a model.")
@setting("--model", "model", "Name of a model we prepare, or a folder that holds one.", "NAME|PATH")
@setting("--workers", "workers", "Engine replicas.")
@setting("--gateways", "gateways", "HTTP gateways.")
@setting("--brokers", "brokers", "Embedded Kafka brokers: 1, 3 or 5; three outlive one's death.")
@setting("--host", "host", "Address to listen on.")
@setting("--port", "port", "Public port; 0 = any free one.")
@setting("--kafka-port", "kafka_port", "Port of the embedded Kafka; 0 = any free one.")
@setting("--clickhouse-port", "clickhouse_port", "Port of the embedded ClickHouse; 0 = any.")
@setting("--kafka", "kafka", "Use this Kafka instead.", "HOST:PORT,...", "embedded")
@setting("--clickhouse", "clickhouse_url", "Use this ClickHouse instead.", "URL", "embedded")
def command(**flags: str | None) -> None:
    """Start the platform in the foreground; Ctrl-C drains and stops it."""
    given = external_settings(flags)
    config = with_model(configuration(flags))
    external = External(kafka="kafka" in given, clickhouse="clickhouse_url" in given)
    folder = DataFolder(config.data_dir)
    lock = folder.open()
    try:
        sys.exit(_run(config, external, folder, os.environ))
    finally:
        os.close(lock)


def with_model(config: Config) -> Config:
    """Return the configuration with everything that follows from the model's name or folder.

    Raises: ConfigError where it is neither a folder with a model nor one that we prepare.
    """
    if config.model == DEFAULT_MODEL:
        return dataclasses.replace(config, model_path=config.cache_dir / "models" / DEFAULT_MODEL)
    path = Path(config.model).expanduser().absolute()
    if not (path / "tokenizer.json").is_file():
        raise ConfigError(
            f"MILLSTREAM_MODEL (--model): {config.model!r} given, expected {DEFAULT_MODEL} or a "
            "folder with tokenizer.json, chat_template.jinja, config.json and weights"
        )
    name = re.sub(r"[^a-z0-9-]+", "-", path.name.lower()).strip("-")[:64] or "model"
    return dataclasses.replace(
        config, model=name, pool=name, model_version=f"{name}-1", model_path=path
    )


def _run(config: Config, external: External, folder: DataFolder, environ: Mapping[str, str]) -> int:
    """Supervise with log lines in DIR/logs and progress on standard output."""
    log_path = folder.logs / "supervisor.log"
    rotate(log_path)
    with log_path.open("a") as log:
        configure(dataclasses.replace(config, process="supervisor"), log)
        deps = SupervisorDeps(
            config=config,
            external=external,
            environ=environ,
            clock=SystemClock(),
            entropy=SystemEntropy(),
            say=lambda text: click.echo(f"millstream: {text}"),
        )
        try:
            return asyncio.run(supervise(deps, folder))
        except OSError as error:
            raise StartupError(f"the platform cannot go on: {error}") from error
