"""The store suite on the store in memory, and the faults that only it has."""

import asyncio

import pytest

from infra.errors import StoreUnavailable
from infra.memory import InsertFault, MemoryUsageStore
from tests.contract.store_suite import StoreSuite, usage_row


class TestMemoryUsageStore(StoreSuite):
    """The shared suite."""

    def setup_method(self) -> None:
        """Give each test an empty store."""
        self.store = MemoryUsageStore()


@pytest.mark.parametrize("stored", [True, False])
def test_a_failed_insert_may_or_may_not_be_stored(stored: bool) -> None:
    """An insert of unknown outcome raises StoreUnavailable, stored or not as the fault says."""
    store = MemoryUsageStore(fault=lambda: InsertFault(stored=stored, fails=True))

    async def work() -> None:
        with pytest.raises(StoreUnavailable):
            await store.insert([usage_row(1)])
        assert await store.physical_count() == int(stored)

    asyncio.run(work())


def test_a_slow_insert_waits_on_the_given_sleep() -> None:
    """A fault's delay is waited through the sleep that was passed in, before anything is stored."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    store = MemoryUsageStore(fault=lambda: InsertFault(delay_s=1.5), sleep=sleep)
    asyncio.run(store.insert([usage_row(1)]))
    assert waited == [1.5]


def test_without_collapse_every_copy_is_read() -> None:
    """The planted bug keeps copies, so that a checker has something to find."""
    store = MemoryUsageStore(collapse=False)

    async def work() -> None:
        await store.insert([usage_row(1), usage_row(1)])
        assert len(await store.rows()) == 2

    asyncio.run(work())
