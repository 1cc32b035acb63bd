"""`millstream keys`: makes, lists and revokes API keys on `control.v1`."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import click

from infra.cli.settings import data_option, running, setting
from infra.config import Config
from infra.control import ControlTail, ControlView
from infra.kafka import KafkaReader, KafkaWriter
from infra.keys import InvalidName, create_key
from infra.ports import Clock, Entropy, LogReader, LogWriter
from infra.system import SystemClock, SystemEntropy
from schemas.codec import encode
from schemas.operations import ControlRecord, KeyCreated, KeyRevoked
from schemas.topics import CONTROL

__all__ = ["command", "create", "revoke"]

_kafka_option = setting("--kafka", "kafka", "Kafka, where no platform runs here.", "HOST:PORT")


@click.group("keys")
def command() -> None:
    """Make, list and revoke API keys."""


@command.command("create")
@click.option("--org", required=True, show_envvar=True, help="Who is billed.")
@click.option("--workspace", default="default", show_envvar=True)
@click.option("--tier", default="default", show_envvar=True)
@click.option("--admin", is_flag=True, show_envvar=True, help="May call /admin.")
@click.option("--json", "as_json", is_flag=True, show_envvar=True)
@data_option
@_kafka_option
def create_command(
    org: str, workspace: str, tier: str, admin: bool, as_json: bool, **flags: str | None
) -> None:
    """Make a key and print its secret, this once."""

    async def run() -> tuple[str, KeyCreated]:
        async with _log(running(flags).config) as (_, writer):
            return await create(
                writer,
                SystemEntropy(),
                SystemClock(),
                org=org,
                workspace=workspace,
                tier=tier,
                admin=admin,
            )

    try:
        secret, created = asyncio.run(run())
    except InvalidName as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        click.echo(json.dumps({"id": created.key_id, "key": secret, "org": org}))
        return
    click.echo(secret)
    click.echo(
        f"id {created.key_id}, org {org}; the secret is not kept, note it now. It works in 2 s.",
        err=True,
    )


@command.command("list")
@click.option("--json", "as_json", is_flag=True, show_envvar=True)
@data_option
@_kafka_option
def list_command(as_json: bool, **flags: str | None) -> None:
    """List all keys, revoked ones too; secrets are not kept."""

    async def run() -> ControlView:
        async with _log(running(flags).config) as (reader, _):
            return await ControlTail(reader, ControlView()).read_all()

    view = asyncio.run(run())
    for key in view.created.values():
        revoked_ms = view.revoked_ms(key.key_id)
        if as_json:
            shown = {"id": key.key_id, "org": key.org, "workspace": key.workspace}
            more = {"tier": key.tier, "admin": key.admin, "revoked": revoked_ms is not None}
            click.echo(json.dumps({**shown, **more, "created_ms": key.created_ms}))
            continue
        made = datetime.fromtimestamp(key.created_ms / 1000, UTC).isoformat(timespec="seconds")
        notes = (", admin" if key.admin else "") + (", revoked" if revoked_ms is not None else "")
        click.echo(f"{key.key_id}  org {key.org}, tier {key.tier}, made {made}{notes}")


@command.command("revoke")
@click.argument("key_id")
@data_option
@_kafka_option
def revoke_command(key_id: str, **flags: str | None) -> None:
    """Revoke the key KEY_ID; it stops working within 2 s."""

    async def run() -> bool:
        async with _log(running(flags).config) as (reader, writer):
            return await revoke(reader, writer, SystemClock(), key_id)

    if not asyncio.run(run()):
        click.echo(f"no key {key_id}: `millstream keys list` shows their ids", err=True)
        sys.exit(1)
    click.echo(f"revoked {key_id}")


async def create(
    writer: LogWriter,
    entropy: Entropy,
    clock: Clock,
    *,
    org: str,
    workspace: str,
    tier: str,
    admin: bool,
) -> tuple[str, KeyCreated]:
    """Append a new key and return its secret with the fact. Raises LogError: no key was made."""
    secret, created = create_key(
        entropy=entropy, clock=clock, org=org, workspace=workspace, tier=tier, admin=admin
    )
    record = ControlRecord(key_created=created)
    await writer.send(CONTROL, 0, encode(record), key=created.key_id.encode())
    return secret, created


async def revoke(reader: LogReader, writer: LogWriter, clock: Clock, key_id: str) -> bool:
    """Append a key's revocation; return whether there is such a key. Raises LogError."""
    view = await ControlTail(reader, ControlView()).read_all()
    if key_id not in view.created:
        return False
    gone = ControlRecord(key_revoked=KeyRevoked(key_id=key_id, revoked_ms=clock.now_ms()))
    await writer.send(CONTROL, 0, encode(gone), key=key_id.encode())
    return True


@asynccontextmanager
async def _log(config: Config) -> AsyncIterator[tuple[LogReader, LogWriter]]:
    reader = KafkaReader(config.kafka, client_id="millstream-keys")
    writer = KafkaWriter(config.kafka, client_id="millstream-keys")
    await reader.start()
    await writer.start()
    try:
        yield reader, writer
    finally:
        await writer.close()
        await reader.close()
