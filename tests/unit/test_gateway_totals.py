"""Usage totals as the gateway shows them."""

import asyncio

from gateway.totals import TotalsTail, TotalsView
from infra.memory import MemoryBroker
from infra.system import SystemClock
from schemas import limits
from schemas.codec import encode
from schemas.topics import USAGE_TOTALS
from schemas.usage import UsageTotals


def totals(org: str, partition: int, requests: int) -> UsageTotals:
    """Return a record whose counters are multiples of its requests."""
    return UsageTotals(
        org=org,
        requests=requests,
        input_tokens=requests * 10,
        cached_tokens=0,
        output_tokens=requests * 5,
        cost_nano=0,
        partition=partition,
        next_offset=requests,
    )


def test_the_newest_record_of_each_partition_counts() -> None:
    """A later record replaces its partition's earlier one; partitions of an org add up."""
    view = TotalsView()
    for record in (totals("b", 0, 1), totals("b", 0, 3), totals("b", 2, 4), totals("a", 1, 2)):
        view.apply(record)
    shown = {"cached_tokens": 0, "cost_nano": 0}
    assert view.rows() == [
        {"org": "a", "requests": 2, "input_tokens": 20, "output_tokens": 10, **shown},
        {"org": "b", "requests": 7, "input_tokens": 70, "output_tokens": 35, **shown},
    ]


def test_the_tail_reads_from_the_start_and_passes_over_what_it_cannot_read() -> None:
    """Everything in the compacted topic counts, whenever it was written."""

    async def scenario() -> None:
        broker = MemoryBroker(SystemClock())
        broker.create_topic(USAGE_TOTALS, limits.USAGE_PARTITIONS, {})
        writer, view = broker.writer("stream-app"), TotalsView()
        await writer.send(USAGE_TOTALS, 1, b"nonsense")
        await writer.send(USAGE_TOTALS, 1, encode(totals("a", 1, 2)))
        await TotalsTail(broker.reader(), view).run_once()
        assert [row["requests"] for row in view.rows()] == [2]

    asyncio.run(scenario())
