"""Limits so tight that a small run meets every one of them."""

from collections.abc import Iterator
from contextlib import contextmanager

from engine_workers.bounds import WorkerBounds
from schemas import limits
from tests.sim.swaps import swapped

STATUS_EVERY_MS = 2_000
FETCH_WAIT_MS = 5_000
COMMIT_EVERY_MS = 400


class SimBounds(WorkerBounds):
    """A worker's bounds that follow the limits of the run, also where those forget at once."""

    @property
    def ended_ids(self) -> int:
        """Ended replies that the tail remembers."""
        return limits.TAIL_ENDED_IDS_MAX


def worker_bounds() -> WorkerBounds:
    """Return the bounds of a worker under the limits of now."""
    return SimBounds(inflight=limits.WORKER_INFLIGHT_MAX)


@contextmanager
def tight_limits(wanted: bool) -> Iterator[None]:
    """Shrink bounds of queues, polls and memories for one run, where the seed says so.

    In any run reports come half as often (they are a third of all records otherwise), and what
    only looks whether there is something to do does so less often.
    """
    with swapped(
        limits,
        STATUS_EVERY_MS=STATUS_EVERY_MS,
        FETCH_WAIT_MS=FETCH_WAIT_MS,
        COMMIT_EVERY_MS=COMMIT_EVERY_MS,
    ):
        if not wanted:
            yield
            return
        with _all_tight():
            yield


@contextmanager
def _all_tight() -> Iterator[None]:
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
