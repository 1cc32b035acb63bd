"""The usage store on ClickHouse, through clickhouse-connect's HTTP client.

Owns one client, its time bounds and what its errors mean to the caller. The client is synchronous:
every call runs in one thread of its own, so that calls of one store never overlap. Called by
metering, audit and `apply`.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import clickhouse_connect
from clickhouse_connect.driver import exceptions, options

from infra.clickhouse import schema
from infra.errors import StoreError, StoreRejected, StoreUnavailable
from infra.ports import UsageRow
from schemas import limits

# The client looks for pandas at its first insert and, where another package has brought it, loads
# it: 60 MB, and seconds on a busy machine before the first usage row shows. Nobody here uses it.
options.pd = options.pd_time_test = None

Value = TypeVar("Value")

_HOUR_MS = 3_600_000
_CONNECT_TIMEOUT_S = 3
# ClickHouse's codes that blame the rows: parse, range, type and null errors.
_ROWS_AT_FAULT = frozenset({6, 26, 27, 33, 38, 41, 43, 53, 69, 70, 72, 117, 130, 131, 349, 395})
# What the client raises while it packs rows that do not fit their columns.
_PACKING = (exceptions.DataError, TypeError, ValueError, OverflowError, AttributeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a ClickHouse is and who asks; `url` is http(s)://host:port."""

    url: str
    user: str
    password: str = field(repr=False)
    database: str


class ClickHouseUsageStore:
    """Implements `infra.ports.UsageStore`. Connects at the first call, and again after a
    failure."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._events = schema.place(address.database, schema.EVENTS)
        self._client: Any = None
        self._thread = ThreadPoolExecutor(1, "usage-store")

    async def insert(self, rows: Sequence[UsageRow]) -> None:
        """Store these rows; a repeat collapses (ReplacingMergeTree, read with FINAL)."""
        if rows:
            database = self._address.database
            await self._call(lambda client: _insert(client, database, rows))

    async def refresh(self, rows: Sequence[UsageRow]) -> None:
        """Recompute the hours that these rows lie in, by org."""
        hours: dict[str, set[int]] = {}
        for row in rows:
            start_ms = row.usage.accepted_at_ms // _HOUR_MS * _HOUR_MS
            hours.setdefault(row.usage.org, set()).add(start_ms // 1_000)
        for org, seconds in sorted(hours.items()):
            parameters = {"org": org, "hours": sorted(seconds)}
            statement = schema.refresh_statement(self._address.database)
            await self._command(statement, parameters)

    async def rows(self, request_id: str | None = None) -> Sequence[UsageRow]:
        """Return the rows of the view `usage`, in the order of the table's key."""
        columns = schema.column_list(times_as_integers=True)
        where = "" if request_id is None else "WHERE request_id = {request_id:String}"
        sql = f"""SELECT {columns} FROM {self._events} FINAL {where}
            ORDER BY org, toStartOfHour(accepted_at), request_id"""
        found = await self._call(
            lambda client: client.query(sql, parameters={"request_id": request_id or ""})
        )
        return [schema.row_of(values) for values in found.result_rows]

    async def physical_count(self) -> int:
        """Return the table's rows before collapsing."""
        sql = f"SELECT count() FROM {self._events}"
        found = await self._call(lambda client: client.query(sql))
        return int(found.first_row[0])

    async def disputed(self) -> Sequence[str]:
        """Return ids whose copies differ; one row per id and distinct content is what is
        counted."""
        sql = f"""SELECT request_id FROM {self._events} GROUP BY request_id
            HAVING uniqExact(tuple({schema.billed_columns()})) > 1 ORDER BY request_id"""
        found = await self._call(lambda client: client.query(sql))
        return [str(values[0]) for values in found.result_rows]

    async def create_tables(self) -> None:
        """Make the database, tables and views; no effect where they exist. Raises StoreError."""
        for statement in schema.statements(self._address.database):
            await self._command(statement, {})

    async def missing_tables(self) -> Sequence[str]:
        """Return the tables and views that `create_tables` would make. Raises StoreError."""
        sql = "SELECT name FROM system.tables WHERE database = {database:String}"
        parameters = {"database": self._address.database}
        found = await self._call(lambda client: client.query(sql, parameters=parameters))
        present = {str(values[0]) for values in found.result_rows}
        return [name for name in schema.ALL if name not in present]

    async def close(self) -> None:
        """Close the client; a call that runs ends first, within its time bound."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._drop)
        self._thread.shutdown(wait=False)

    async def _command(self, statement: str, parameters: Mapping[str, object]) -> None:
        await self._call(lambda client: client.command(statement, parameters=parameters))

    async def _call(self, work: Callable[[Any], Value]) -> Value:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._attempt, work)

    def _attempt(self, work: Callable[[Any], Value]) -> Value:
        """Run in the thread: connect if needed, work, and translate what it raises."""
        try:
            if self._client is None:
                self._client = _connect(self._address)
            return work(self._client)
        except Exception as error:  # the client lets urllib3's and socket errors through
            translated = _translate(error)
            if isinstance(translated, StoreUnavailable):
                self._drop()
            raise translated from error

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


async def create_tables(address: Address) -> None:
    """Make the database, tables and views at `address`. Raises StoreError."""
    store = ClickHouseUsageStore(address)
    try:
        await store.create_tables()
    finally:
        await store.close()


def _connect(address: Address) -> Any:
    # No database: every statement names its own, so that one can connect before it exists.
    parts = urlsplit(address.url)
    return clickhouse_connect.get_client(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or (8443 if parts.scheme == "https" else 8123),
        secure=parts.scheme == "https",
        username=address.user,
        password=address.password,
        connect_timeout=_CONNECT_TIMEOUT_S,
        send_receive_timeout=limits.STORE_TIMEOUT_S,
        autogenerate_session_id=False,  # a session allows one query at a time and we keep no state
        compress=False,  # rows are small and the server is near
        query_retries=0,  # the caller repeats, with back-off
        client_name="millstream",
    )


def _insert(client: Any, database: str, rows: Sequence[UsageRow]) -> None:
    client.insert(
        schema.EVENTS,
        [schema.values_of(row) for row in rows],
        database=database,
        column_names=[column.name for column in schema.COLUMNS],
        column_type_names=[column.type for column in schema.COLUMNS],
    )


def _translate(error: Exception) -> StoreError:
    """Return what an error means: repeat the same call, or the rows are at fault."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, _PACKING):
        return StoreRejected(f"rows do not fit the table: {error!r}")
    code = getattr(error, "code", None)
    if isinstance(error, exceptions.DatabaseError) and code in _ROWS_AT_FAULT:
        return StoreRejected(str(error))
    return StoreUnavailable(str(error) or repr(error))
