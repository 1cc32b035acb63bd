"""What every usage store must do: one suite, run on memory and on ClickHouse."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec.structs import replace

from infra.ports import UsageRow, UsageStore
from schemas.replies import StageTimes
from schemas.usage import UsageRecorded

Value = TypeVar("Value")

ACCEPTED_AT_MS = 1_796_000_000_123


def usage_row(
    number: int, *, partition: int = 1, offset: int = 7, org: str = "acme", **columns: object
) -> UsageRow:
    """Return a row of request `number`, other columns as given."""
    usage = UsageRecorded(
        request_id=f"00000000-0000-4000-8000-{number:012d}",
        org=org,
        workspace="default",
        key_id="key-1",
        user=None,
        alias="smollm2-135m-instruct",
        model="smollm2-135m-instruct",
        model_version="1",
        pool="smollm2-135m-instruct",
        region=None,
        rollout_arm=None,
        price_book_version=None,
        dialect="anthropic",
        accepted_at_ms=ACCEPTED_AT_MS,
        first_token_at_ms=ACCEPTED_AT_MS + 20,
        ended_at_ms=ACCEPTED_AT_MS + 500,
        input_tokens=10,
        cached_tokens=4,
        output_tokens=25,
        cost_nano=0,
        stop_reason="end",
        close_reason=None,
        stages=StageTimes(taken_ms=1, started_ms=2, first_token_ms=3, finished_ms=4),
    )
    usage = replace(usage, **columns)
    return UsageRow(usage=usage, partition=partition, offset=offset)


class StoreSuite:
    """Subclasses give `store`; each test gets an empty one."""

    store: UsageStore

    def run(self, work: Callable[[UsageStore], Awaitable[Value]]) -> Value:
        """Run one test's coroutine on the store of this test, then close it."""

        async def session() -> Value:
            try:
                return await work(self.store)
            finally:
                await self.store.close()

        return asyncio.run(session())

    def test_rows_read_back_equal(self) -> None:
        """What is inserted reads back equal, nulls, zeros and large numbers included."""
        rows = [
            usage_row(1),
            usage_row(2, user="ann", region="eu", stop_reason=None, close_reason="cancelled"),
            usage_row(3, first_token_at_ms=None, stages=None, output_tokens=0, input_tokens=0),
            usage_row(4, org="b'`\\x", cost_nano=-(2**62), output_tokens=2**40, offset=2**40),
        ]

        async def work(store: UsageStore) -> None:
            await store.insert(rows)
            assert list(await store.rows()) == rows

        self.run(work)

    def test_an_empty_store_reads_empty(self) -> None:
        """Without rows everything reads empty, and inserting nothing stores nothing."""

        async def work(store: UsageStore) -> None:
            await store.insert([])
            await store.refresh([])
            assert list(await store.rows()) == []
            assert await store.physical_count() == 0
            assert list(await store.disputed()) == []

        self.run(work)

    def test_one_request_is_read_alone(self) -> None:
        """Asking for one id returns its row only, and none for an unknown id."""

        async def work(store: UsageStore) -> None:
            await store.insert([usage_row(1), usage_row(2)])
            wanted = usage_row(2)
            assert list(await store.rows(wanted.usage.request_id)) == [wanted]
            assert list(await store.rows("nobody")) == []

        self.run(work)

    def test_exact_copies_collapse(self) -> None:
        """Rows inserted again, in the same or another cut, read once and count as stored."""

        async def work(store: UsageStore) -> None:
            rows = [usage_row(n, offset=n) for n in range(5)]
            await store.insert(rows[:3])
            await store.insert(rows)
            assert list(await store.rows()) == rows
            assert list(await store.disputed()) == []
            assert 5 <= await store.physical_count() <= 8

        self.run(work)

    def test_the_copy_with_the_highest_offset_is_read(self) -> None:
        """Copies at several offsets read as the highest one, in whatever order they came."""

        async def work(store: UsageStore) -> None:
            await store.insert([usage_row(1, offset=9)])
            await store.insert([usage_row(1, offset=4)])
            assert [row.offset for row in await store.rows()] == [9]
            assert list(await store.disputed()) == []

        self.run(work)

    def test_copies_that_differ_are_disputed(self) -> None:
        """An id whose copies differ in a billed column is named, whichever copy is read."""

        async def work(store: UsageStore) -> None:
            await store.insert([usage_row(1, offset=9), usage_row(2)])
            await store.insert([usage_row(1, offset=9, output_tokens=26)])
            await store.insert([usage_row(3), usage_row(3, org="other")])
            named = [usage_row(1).usage.request_id, usage_row(3).usage.request_id]
            assert list(await store.disputed()) == named

        self.run(work)

    def test_refresh_may_be_repeated(self) -> None:
        """Recomputing rollups twice, or for rows that were never stored, changes no row."""

        async def work(store: UsageStore) -> None:
            await store.insert([usage_row(1)])
            await store.refresh([usage_row(1)])
            await store.refresh([usage_row(1), usage_row(2, org="nobody")])
            assert list(await store.rows()) == [usage_row(1)]

        self.run(work)
