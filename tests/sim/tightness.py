"""Limits so tight that a small run meets every one of them."""

from collections.abc import Iterator
from contextlib import contextmanager

from schemas import limits
from tests.sim.swaps import swapped


@contextmanager
def tight_limits(wanted: bool) -> Iterator[None]:
    """Shrink bounds of queues, polls and memories for one run, where the seed says so."""
    if not wanted:
        yield
        return
    with swapped(
        limits,
        WORKER_INFLIGHT_MAX=4,
        LANE_UNFINISHED_SPAN_MAX=4,
        TAIL_ENDED_IDS_MAX=4,
        POLL_RECORDS_MAX=2,
        MAILBOX_ENTRIES_MAX=3,
        REREADS_MAX=1,
        METERING_BATCH_ROWS_MAX=2,
        GATEWAY_INFLIGHT_MAX=8,
    ):
        yield
