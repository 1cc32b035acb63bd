"""What clients were told, what ClickHouse holds, what Faust sums up and what the audit says."""

import asyncio
import json
import time
from collections import Counter

from tests.integration.load import Load, ask, sdks
from tests.integration.platform import SOAK, Platform, eventually

REQUESTS = 1_000 if SOAK else 200
CONCURRENT = 32
ORGS = ("acme", "globex")
EVENTS = "millstream.usage_events"
NO_MERGE = ("max_bytes_to_merge_at_min_space_in_pool", "max_bytes_to_merge_at_max_space_in_pool")


def test_200_mixed_requests_are_metered_to_the_token(platform: Platform) -> None:
    """All succeed at 32 concurrent, ClickHouse's sums per org are what the clients were told, and
    the audit agrees."""
    told: dict[str, Counter[str]] = {}
    took_s = 0.0
    for org in ORGS:
        _, key = platform.make_key(org)
        before = _sums(platform).get(org, Counter())
        began_s = time.monotonic()
        load = asyncio.run(_send(platform, key, REQUESTS // len(ORGS)))
        took_s += time.monotonic() - began_s
        assert load.failed == []
        assert {(reply.dialect, reply.stream) for reply in load.finished} == {
            (dialect, stream) for dialect in ("anthropic", "openai") for stream in (True, False)
        }
        told[org] = before + Counter(
            requests=len(load.finished),
            input_tokens=sum(reply.input_tokens for reply in load.finished),
            cached_tokens=sum(reply.cached_tokens for reply in load.finished),
            output_tokens=sum(reply.output_tokens for reply in load.finished),
        )
    eventually(
        lambda: all(_sums(platform).get(org) == told[org] for org in ORGS),
        5.0,
        f"ClickHouse shows {told}",
    )
    report = platform.check_audit()
    print(f"{REQUESTS} requests in {took_s:.1f} s; audit waited {report['waited_s']} s")


def test_a_row_is_visible_within_two_seconds(platform: Platform) -> None:
    """From the reply's end to its row in the view `usage` it takes at most 2 s."""

    async def scenario() -> list[float]:
        waits = []
        async with sdks(platform.url, platform.key) as clients:
            for number in range(6):
                dialect = ("anthropic", "openai")[number % 2]
                reply = await ask(clients, dialect, "Hello", stream=number > 2, max_tokens=9)
                await asyncio.to_thread(_wait_for_row, platform, reply.request_id, 2.0)
                waits.append(time.monotonic() - reply.ended_s)
        return waits

    waits = asyncio.run(scenario())
    print(f"rows visible after {', '.join(f'{wait:.2f}' for wait in waits)} s")


def test_totals_equal_clickhouse_also_after_a_kill(platform: Platform) -> None:
    """Faust's totals per org are ClickHouse's, before and after kill -9 of the stream-app."""
    _wait_for_equal_totals(platform)
    assert platform.totals(), "there was usage to sum up"
    for _ in range(3 if SOAK else 1):
        killed = platform.kill("stream-app")
        load = asyncio.run(_send(platform, platform.key, 40))
        assert load.failed == []
        platform.wait_back("stream-app", killed, 40)
        asyncio.run(_send(platform, platform.key, 10))
        _wait_for_equal_totals(platform)


def test_audit_names_what_was_changed_by_hand(platform: Platform) -> None:
    """A row deleted, changed or made up makes the audit exit 1 naming its request; an exact copy
    is collapsed and legal; put right again, it exits 0."""
    load = asyncio.run(_send(platform, platform.key, 8))
    victim = load.finished[0].request_id
    _wait_for_row(platform, victim, 5.0)
    where = f"request_id = '{victim}'"
    with platform.analyst() as client:
        saved = client.query(f"SELECT * FROM {EVENTS} WHERE {where}")
        client.command(f"ALTER TABLE {EVENTS} DELETE WHERE {where}")
        _check_named(platform, victim)
        client.insert(EVENTS, saved.result_rows, column_names=saved.column_names)

        change = f"ALTER TABLE {EVENTS} UPDATE output_tokens = output_tokens {{}} WHERE {where}"
        client.command(change.format("+ 1"))
        _check_named(platform, victim)
        client.command(change.format("- 1"))

        made_up = "00000000-0000-4000-8000-000000000001"
        client.command(
            f"INSERT INTO {EVENTS} SELECT * REPLACE ('{made_up}' AS request_id) "
            f"FROM (SELECT * FROM {EVENTS} WHERE {where} LIMIT 1)"
        )
        _check_named(platform, made_up)
        client.command(f"ALTER TABLE {EVENTS} DELETE WHERE request_id = '{made_up}'")

        # Merges in the background collapse a copy too, sooner or later: it counts unmerged only.
        no_merge = ", ".join(f"{setting} = 1" for setting in NO_MERGE)
        client.command(f"ALTER TABLE {EVENTS} MODIFY SETTING {no_merge}")
        collapsed_before = platform.check_audit()["collapsed"]
        client.command(f"INSERT INTO {EVENTS} SELECT * FROM {EVENTS} WHERE {where} LIMIT 1")
        assert platform.check_audit()["collapsed"] == collapsed_before + 1
        client.command(f"ALTER TABLE {EVENTS} RESET SETTING {', '.join(NO_MERGE)}")
        client.command(f"OPTIMIZE TABLE {EVENTS} FINAL")
        assert platform.check_audit()["collapsed"] == 0
    shown = platform.command("audit", "--request", load.finished[0].request_id)
    assert shown.returncode == 0 and victim in shown.stdout


async def _send(platform: Platform, key: str, count: int) -> Load:
    """Send `count` requests of all kinds, 32 at a time."""
    async with sdks(platform.url, key) as clients:
        load, slots = Load(clients), asyncio.Semaphore(CONCURRENT)

        async def send() -> None:
            async with slots:
                await load.send_next()

        await asyncio.gather(*(send() for _ in range(count)))
        return load


def _wait_for_row(platform: Platform, request_id: str, within_s: float) -> None:
    eventually(
        lambda: request_id in platform.usage_of([request_id]), within_s, "the row is visible"
    )


def _sums(platform: Platform) -> dict[str, Counter[str]]:
    """Return ClickHouse's sums by org."""
    names = ("requests", "input_tokens", "cached_tokens", "output_tokens")
    with platform.analyst() as client:
        found = client.query(
            "SELECT org, count(), sum(input_tokens), sum(cached_tokens), sum(output_tokens) "
            "FROM usage GROUP BY org"
        )
        return {
            org: Counter(dict(zip(names, values, strict=True)))
            for org, *values in found.result_rows
        }


def _wait_for_equal_totals(platform: Platform) -> None:
    def totals() -> dict[str, Counter[str]]:
        names = ("requests", "input_tokens", "cached_tokens", "output_tokens")
        return {
            org: Counter({name: row[name] for name in names})
            for org, row in platform.totals().items()
        }

    eventually(lambda: totals() == _sums(platform), 20.0, "totals equal ClickHouse's sums")


def _check_named(platform: Platform, request_id: str) -> None:
    status, report = platform.audit()
    named = {difference["request_id"] for difference in report["differences"]}
    assert (status, named) == (1, {request_id}), json.dumps(report["differences"][:9])
