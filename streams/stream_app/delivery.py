"""Notices records that Faust takes from the broker and does not deliver.

When a rebalance stops Faust's fetcher, a fetch under way in the consumer's thread goes on, and what
it then takes is nobody's (`Consumer.getmany` was cancelled; the thread still moves the position).
Committed partitions are mostly saved by the seek that ends a recovery. Otherwise the next record
shows a gap (`confirmations.py`), and where none follows, this watch tells. Pure.
"""

from collections.abc import Mapping

from schemas import limits
from streams.stream_app.errors import DeliveryStalled


class DeliveryWatch:
    """Mutable state: since when each partition has stood at its offset."""

    def __init__(self) -> None:
        self._stood: dict[int, tuple[int, float]] = {}

    def reset(self) -> None:
        """Start anew: delivery is held back for a reason."""
        self._stood.clear()

    def check(self, now_s: float, expected: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Compare what should come next with where each partition ends; call it every second or so.

        Raises: DeliveryStalled where a partition with more records has stood still too long.
        """
        for partition, offset in expected.items():
            end = ends.get(partition, 0)
            stood_at, since_s = self._stood.get(partition, (-1, now_s))
            if stood_at != offset or end <= offset:
                self._stood[partition] = (offset, now_s)
            elif now_s - since_s >= limits.USAGE_DELIVERY_STALL_MS / 1000:
                raise DeliveryStalled(partition, offset, end)
