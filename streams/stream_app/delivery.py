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
    """Mutable state: in how many checks each partition has stood at its offset.

    Counted, not timed: after a pause of this process nothing has been late yet.
    """

    def __init__(self) -> None:
        self._stood: dict[int, tuple[int, int]] = {}

    def reset(self) -> None:
        """Start anew: delivery is held back for a reason."""
        self._stood.clear()

    def check(self, expected: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Compare what should come next with where each partition ends.

        Raises: DeliveryStalled where a partition with more records has stood still too long.
        """
        for partition, offset in expected.items():
            end = ends.get(partition, 0)
            stood_at, times = self._stood.get(partition, (offset, 0))
            times = times + 1 if stood_at == offset and end > offset else 0
            if times > limits.USAGE_DELIVERY_CHECKS_MAX:
                raise DeliveryStalled(partition, offset, end)
            self._stood[partition] = (offset, times)
