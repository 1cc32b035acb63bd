"""`millstream limits`: what it writes, and what it shows of the log."""

import asyncio
import json

from click.testing import CliRunner

from gateway.lease import OrgLease
from infra.cli.limits import command, look, render, set_limits
from infra.memory import MemoryBroker
from infra.system import SystemClock
from schemas.codec import encode
from schemas.operations import LimitsSet
from schemas.quota import limits_of
from schemas.quota_ledger import Ledger
from schemas.topics import QUOTA_GRANTS, USAGE_TOTALS, topics
from schemas.usage import UsageTotals, month_of


def log() -> MemoryBroker:
    """Return a log with all topics."""
    broker = MemoryBroker(SystemClock())
    for topic in topics("test"):
        broker.create_topic(topic.name, topic.partitions, {})
    return broker


def test_limits_not_named_stay_and_none_takes_one_away() -> None:
    """Each setting is whole: the newest one alone tells all limits of an org."""

    async def scenario() -> None:
        broker, clock = log(), SystemClock()
        writer = broker.writer("operator")
        await set_limits(broker.reader(), writer, clock, "acme", {"concurrency": 4})
        await set_limits(broker.reader(), writer, clock, "other", {"tokens_per_month": 9})
        fact = await set_limits(
            broker.reader(), writer, clock, "acme", {"requests_per_minute": 60, "concurrency": None}
        )
        assert (fact.requests_per_minute, fact.concurrency) == (60, None)
        states, used = await look(broker.reader(), clock, "acme")
        shown = {state.name: (state.limit, state.left) for state in states}
        assert shown["requests_per_minute"] == (60, 60) and used == 0
        assert shown["tokens_per_month"] == (None, None)

    asyncio.run(scenario())


def test_it_shows_what_gateways_spent_and_this_month_alone() -> None:
    """The newest grant tells the bucket; totals of an earlier month do not count."""

    async def scenario() -> None:
        broker, clock = log(), SystemClock()
        writer, now_ms = broker.writer("stream-app"), clock.now_ms()
        changes: dict[str, int | None] = {"output_tokens_per_minute": 100, "tokens_per_month": 50}
        await set_limits(broker.reader(), broker.writer("operator"), clock, "acme", changes)
        fact = LimitsSet(org="acme", set_ms=0, output_tokens_per_minute=100)
        lease, ledger = OrgLease(limits_of(fact, 1), "gateway-0/1"), Ledger("stream-app/1", 0)
        lease.charge(3, 70)
        grant = ledger.handle(lease.demand(0.0), now_ms)
        assert grant is not None
        await writer.send(QUOTA_GRANTS, 0, encode(grant))
        month = month_of(now_ms)
        for partition, of_month in ((0, month), (1, month - 1), (2, month)):
            totals = UsageTotals(
                org="acme",
                requests=1,
                input_tokens=900,
                cached_tokens=0,
                output_tokens=900,
                cost_nano=0,
                partition=partition,
                next_offset=1,
                month=of_month,
                month_input_tokens=7,
                month_output_tokens=3,
            )
            await writer.send(USAGE_TOTALS, partition, encode(totals))
        states, used = await look(broker.reader(), clock, "acme")
        shown = json.loads(render("acme", states, used, as_json=True))
        assert shown["month_tokens"] == 20
        assert shown["limits"]["tokens_per_month"] == {"limit": 50, "left": 30}
        assert 30 <= shown["limits"]["output_tokens_per_minute"]["left"] <= 35
        assert "tokens_per_month          50, 30 left" in render(
            "acme", states, used, as_json=False
        )

    asyncio.run(scenario())


def test_bad_values_are_refused_by_name() -> None:
    """Before anything is connected to."""
    for arguments, word in (
        (["set", "acme"], "--requests-per-minute"),
        (["set", "acme", "--concurrency", "0"], "--concurrency"),
        (["set", "acme", "--tokens-per-month", "many"], "--tokens-per-month"),
    ):
        result = CliRunner().invoke(command, arguments)
        assert result.exit_code == 2 and word in result.output
