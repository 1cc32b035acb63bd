"""`millstream limits`: sets an org's limits on `control.v1`, and shows what is left of them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import click
from msgspec import Struct
from msgspec.structs import replace

from infra.cli.settings import data_option, running, setting
from infra.config import Config
from infra.control import ControlTail, ControlView
from infra.kafka import KafkaReader, KafkaWriter
from infra.ports import Clock, LogReader, LogRecord, LogWriter, TopicPartition
from infra.system import SystemClock
from schemas import limits
from schemas.codec import Undecodable, decode, encode
from schemas.operations import ControlRecord, LimitsSet
from schemas.quota import PARTS, Kind, QuotaGranted, Reigns, limits_of, refilled
from schemas.topics import CONTROL, QUOTA_GRANTS, USAGE_TOTALS
from schemas.usage import UsageTotals, month_of

__all__ = ["LimitState", "command", "look", "render", "set_limits"]

_kafka_option = setting("--kafka", "kafka", "Kafka, where no platform runs here.", "HOST:PORT")
_NONE = "none"
_LIMIT_MAX = 10**12
_NAMES = (
    "requests_per_minute",
    "input_tokens_per_minute",
    "output_tokens_per_minute",
    "concurrency",
    "tokens_per_month",
)
_KINDS = (Kind.REQUESTS, Kind.INPUT, Kind.OUTPUT)


class LimitState(Struct, frozen=True, kw_only=True):
    """One limit of an org as it stands."""

    name: str
    limit: int | None
    left: int | None
    """Units left now, leases of gateways included; None where nothing is counted."""


@click.group("limits")
def command() -> None:
    """Set and show the limits of an org."""


def _limit_option(name: str, meaning: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    flag = f"--{name.replace('_', '-')}"
    return click.option(flag, name, metavar="N|none", show_envvar=True, help=meaning)


@command.command("set")
@click.argument("org")
@_limit_option("requests_per_minute", "Requests; count_tokens has as many of its own.")
@_limit_option("input_tokens_per_minute", "Prompt tokens that were not cached.")
@_limit_option("output_tokens_per_minute", "Tokens as they are made.")
@_limit_option("concurrency", "Requests in flight.")
@_limit_option("tokens_per_month", "Input and output, by calendar month UTC.")
@data_option
@_kafka_option
def set_command(org: str, **given: str | None) -> None:
    """Set limits of ORG; those not named stay as they are, `none` takes one away.

    They hold within 2 s, at all gateways together.
    """
    named = {name: given.pop(name) for name in _NAMES}
    values = {name: _value(name, text) for name, text in named.items() if text is not None}
    if not values:
        raise click.UsageError(f"name a limit: --{', --'.join(_NAMES).replace('_', '-')}")

    async def run() -> LimitsSet:
        async with _log(running(given).config) as (reader, writer):
            return await set_limits(reader, writer, SystemClock(), org, values)

    click.echo(_line(asyncio.run(run())))


@command.command("show")
@click.argument("org")
@click.option("--json", "as_json", is_flag=True, show_envvar=True)
@data_option
@_kafka_option
def show_command(org: str, as_json: bool, **flags: str | None) -> None:
    """Show the limits of ORG, what is left of them now, and this month's use."""

    async def run() -> tuple[list[LimitState], int]:
        async with _log(running(flags).config) as (reader, _):
            return await look(reader, SystemClock(), org)

    states, used = asyncio.run(run())
    click.echo(render(org, states, used, as_json=as_json))


async def set_limits(
    reader: LogReader, writer: LogWriter, clock: Clock, org: str, changes: dict[str, int | None]
) -> LimitsSet:
    """Append an org's limits with some of them changed; return all. Raises LogError."""
    view = await ControlTail(reader, ControlView()).read_all()
    held = view.limits_set(org) or LimitsSet(org=org, set_ms=0)
    fact = replace(held, set_ms=clock.now_ms(), **changes)
    await writer.send(CONTROL, 0, encode(ControlRecord(limits_set=fact)), key=org.encode())
    return fact


async def look(reader: LogReader, clock: Clock, org: str) -> tuple[list[LimitState], int]:
    """Return an org's limits with what is left, and the tokens of this month. Raises LogError."""
    view = await ControlTail(reader, ControlView()).read_all()
    fact = view.limits_set(org) or LimitsSet(org=org, set_ms=0)
    used = await _month_use(reader, org, month_of(clock.now_ms()))
    newest = await _newest_grant(reader, org)
    left = _left(fact, newest, clock.now_ms())
    left["tokens_per_month"] = (
        None if fact.tokens_per_month is None else max(0, fact.tokens_per_month - used)
    )
    states = [
        LimitState(name=name, limit=getattr(fact, name), left=left.get(name)) for name in _NAMES
    ]
    return states, used


def render(org: str, states: list[LimitState], used: int, *, as_json: bool) -> str:
    """Return what `show` prints."""
    if as_json:
        shown = {state.name: {"limit": state.limit, "left": state.left} for state in states}
        return json.dumps({"org": org, "limits": shown, "month_tokens": used})
    month = datetime.now(UTC).strftime("%Y-%m")
    lines = [f"org {org}, {used} tokens in {month}"]
    for state in states:
        limit = "unlimited" if state.limit is None else str(state.limit)
        left = "" if state.limit is None or state.left is None else f", {state.left} left"
        lines.append(f"  {state.name:<26}{limit}{left}")
    return "\n".join(lines)


def _value(name: str, text: str) -> int | None:
    """Return a limit as it was given. Raises click's UsageError."""
    if text.strip().lower() == _NONE:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= _LIMIT_MAX:
        flag = f"--{name.replace('_', '-')}"
        raise click.UsageError(
            f"{flag}: {text!r} given, expected a whole number from 1 to {_LIMIT_MAX}, or none"
        )
    return int(text)


def _line(fact: LimitsSet) -> str:
    values = {name: getattr(fact, name) for name in _NAMES}
    parts = [f"{name} {value}" for name, value in values.items() if value is not None]
    return f"org {fact.org}: {', '.join(parts) or 'unlimited'}"


def _left(fact: LimitsSet, newest: QuotaGranted | None, now_ms: int) -> dict[str, int | None]:
    per_minute = limits_of(fact, 1).per_minute
    left: dict[str, int | None] = {}
    for kind, name in zip(_KINDS, _NAMES, strict=False):
        limit = per_minute[kind]
        if limit is None:
            continue
        left[name] = limit
        if newest is not None:
            held = newest.held[kind] + newest.held_by_others[kind]
            elapsed_ms = now_ms - newest.at_ms
            if elapsed_ms > limits.QUOTA_TERM_MS:
                held = 0
            level = refilled(newest.levels[kind], limit, held, elapsed_ms)
            left[name] = max(0, min(limit, level // PARTS + held))
    return left


async def _newest_grant(reader: LogReader, org: str) -> QuotaGranted | None:
    reigns, newest = Reigns(), None
    async for record in _all(reader, TopicPartition(QUOTA_GRANTS, 0)):
        try:
            grant = decode(record.value, QuotaGranted)
        except Undecodable:
            continue
        if reigns.counts(grant, record.offset) and grant.org == org:
            newest = grant
    return newest


async def _month_use(reader: LogReader, org: str, month: int) -> int:
    used = 0
    for partition in range(limits.USAGE_PARTITIONS):
        own = 0
        async for record in _all(reader, TopicPartition(USAGE_TOTALS, partition)):
            try:
                totals = decode(record.value, UsageTotals)
            except Undecodable:
                continue
            if totals.org == org:
                tokens = totals.month_input_tokens + totals.month_output_tokens
                own = tokens if totals.month == month else 0
        used += own
    return used


async def _all(reader: LogReader, place: TopicPartition) -> AsyncIterator[LogRecord]:
    """Yield what stands in a partition now."""
    bounds = (await reader.bounds([place]))[place]
    reader.assign({place: bounds.start})
    while reader.position(place) < bounds.end:
        for record in await reader.poll(
            timeout_ms=limits.FETCH_WAIT_MS, max_records=limits.POLL_RECORDS_MAX
        ):
            yield record


@asynccontextmanager
async def _log(config: Config) -> AsyncIterator[tuple[LogReader, LogWriter]]:
    reader = KafkaReader(config.kafka, client_id="millstream-limits")
    writer = KafkaWriter(config.kafka, client_id="millstream-limits")
    await reader.start()
    await writer.start()
    try:
        yield reader, writer
    finally:
        await writer.close()
        await reader.close()
