"""The Kafka adapters under the contract suite, on a real broker."""

import asyncio

import pytest

from tests.contract.kafka_harness import KafkaHarness
from tests.contract.log_suite import CHECKS, Check


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check: Check, kafka_bootstrap: str) -> None:
    """Kafka keeps this clause of the log's contract."""
    asyncio.run(_checked(check, kafka_bootstrap))


async def _checked(check: Check, bootstrap: str) -> None:
    harness = KafkaHarness(bootstrap)
    try:
        await check(harness)
    finally:
        await harness.close()
