"""The store suite on ClickHouse (the embedded one), and what only ClickHouse has: rollups, the
views."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clickhouse_connect
import pytest

from infra.clickhouse import schema
from infra.clickhouse.store import Address, ClickHouseUsageStore
from infra.errors import StoreRejected, StoreUnavailable
from tests.clickhouse_front import PASSWORD, USER, FrontProcess
from tests.contract.store_suite import StoreSuite, usage_row


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontProcess]:
    """One embedded ClickHouse for this module."""
    folder: Path = tmp_path_factory.mktemp("clickhouse")
    with FrontProcess(folder) as process:
        yield process


@pytest.fixture
def address(front: FrontProcess, request: pytest.FixtureRequest) -> Address:
    """A database of the test's own, with the product's tables in it."""
    name = f"test_{abs(hash(request.node.nodeid))}"
    address = Address(url=front.url, user=USER, password=PASSWORD, database=name)

    async def make() -> None:
        store = ClickHouseUsageStore(address)
        assert len(await store.missing_tables()) == 4
        await store.create_tables()
        await store.create_tables()
        assert await store.missing_tables() == []
        await store.close()

    asyncio.run(make())
    return address


class TestClickHouseUsageStore(StoreSuite):
    """The shared suite."""

    @pytest.fixture(autouse=True)
    def _store(self, address: Address) -> None:
        self.store = ClickHouseUsageStore(address)


def _client(address: Address) -> Any:
    port = int(address.url.rsplit(":", 1)[1])
    return clickhouse_connect.get_client(
        host="127.0.0.1", port=port, username=USER, password=PASSWORD, database=address.database
    )


def test_rollups_equal_the_sums_of_the_rows(address: Address) -> None:
    """A refreshed hour holds the sums of its collapsed rows, however often and in parts."""

    async def fill() -> None:
        store = ClickHouseUsageStore(address)
        rows = [usage_row(n, offset=n) for n in range(4)]
        await store.insert(rows[:2])
        await store.refresh(rows[:2])
        await store.insert(rows)
        await store.refresh(rows)
        await store.refresh(rows)
        await store.close()

    asyncio.run(fill())
    with _client(address) as client:
        columns = "org, requests, input_tokens, cached_tokens, output_tokens"
        for place in (f"{schema.HOURLY} FINAL", "usage_by_hour"):
            found = client.query(f"SELECT {columns} FROM {place}")
            assert found.result_rows == [("acme", 4, 40, 16, 100)]
        naive = "SELECT sum(requests), sum(output_tokens) FROM usage_by_hour"
        assert client.query(naive).result_rows == [(4, 100)]


def test_a_database_of_an_earlier_release_gains_what_it_lacks(address: Address) -> None:
    """Only the view that is new is missing, and it reads the rows that were there."""

    async def grow() -> None:
        store = ClickHouseUsageStore(address)
        await store.insert([usage_row(1)])
        await store.refresh([usage_row(1)])
        assert await store.missing_tables() == ["usage_by_hour"]
        await store.create_tables()
        assert await store.missing_tables() == []
        await store.close()

    with _client(address) as client:
        client.command("DROP VIEW usage_by_hour")
        asyncio.run(grow())
        assert client.query("SELECT requests FROM usage_by_hour").result_rows == [(1,)]


def test_the_view_names_and_explains_its_columns(address: Address) -> None:
    """`usage` shows one row per request, and each of its columns has a comment."""

    async def fill() -> None:
        store = ClickHouseUsageStore(address)
        await store.insert([usage_row(1), usage_row(1)])
        await store.close()

    asyncio.run(fill())
    with _client(address) as client:
        assert client.query(
            "SELECT request_id, org, input_tokens, output_tokens, partition, offset FROM usage"
        ).result_rows == [(usage_row(1).usage.request_id, "acme", 10, 25, 1, 7)]
        described = client.query("DESCRIBE TABLE usage").result_rows
        assert [row[0] for row in described] == [column.name for column in schema.COLUMNS]
        assert all(row[4] for row in described)


def test_rows_that_do_not_fit_are_rejected(address: Address) -> None:
    """A value outside its column's range is the rows' fault: repeating will not help."""

    async def work() -> None:
        store = ClickHouseUsageStore(address)
        with pytest.raises(StoreRejected):
            await store.insert([usage_row(1, output_tokens=2**63)])
        assert await store.physical_count() == 0
        await store.close()

    asyncio.run(work())


def test_a_server_that_is_away_is_unavailable(address: Address) -> None:
    """Refused connections, wrong passwords and missing tables are worth repeating later."""
    away = (
        Address(url="http://127.0.0.1:9", user=USER, password=PASSWORD, database="x"),
        Address(url=address.url, user=USER, password="wrong", database=address.database),
        Address(url=address.url, user=USER, password=PASSWORD, database="not_there"),
    )

    async def work(elsewhere: Address) -> None:
        store = ClickHouseUsageStore(elsewhere)
        with pytest.raises(StoreUnavailable):
            await store.insert([usage_row(1)])
        await store.close()

    for elsewhere in away:
        asyncio.run(work(elsewhere))


def test_inserting_loads_no_pandas() -> None:
    """The client's search for pandas at its first insert finds none, whatever is installed."""
    code = (
        "import sys, infra.clickhouse.store\n"
        "from clickhouse_connect.driver import options\n"
        "sys.exit(options.pd is not None or 'pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
