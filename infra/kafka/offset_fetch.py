"""What a group has committed, asked in a way that does not take an error for "nothing".

From version 2 on the answer to OffsetFetch tells an error of the whole group (its coordinator has
moved, or is still loading) in a field of its own, beside no partitions (KIP-88). aiokafka reads the
partitions alone, so that a member that asks in such a moment hears that nothing is committed, and
begins at the oldest record. Version 1 tells the error with each partition, where aiokafka looks.
"""

from collections.abc import Mapping
from typing import Any

from aiokafka import TopicPartition
from aiokafka.consumer import group_coordinator
from aiokafka.errors import for_code
from aiokafka.protocol.api import Request
from aiokafka.protocol.commit import OffsetFetchRequest, OffsetFetchRequest_v1


class PartitionwiseOffsetFetch(Request[OffsetFetchRequest_v1]):  # type: ignore[misc]  # untyped
    """OffsetFetch in version 1 alone."""

    API_KEY = OffsetFetchRequest.API_KEY

    def __init__(self, group: str, partitions: list[tuple[str, list[int]]]) -> None:
        """Ask for these partitions, by topic."""
        self._group, self._partitions = group, partitions

    def build(self, request_struct_class: type[OffsetFetchRequest_v1]) -> OffsetFetchRequest_v1:
        """Return the request as it is sent."""
        return request_struct_class(self._group, self._partitions)


def correct_consumers() -> None:
    """Make every consumer of this process, Faust's among them, ask in version 1."""
    assert group_coordinator.OffsetFetchRequest in (OffsetFetchRequest, PartitionwiseOffsetFetch)
    group_coordinator.OffsetFetchRequest = PartitionwiseOffsetFetch


async def fetch_all(admin: Any, group: str) -> Mapping[TopicPartition, int]:
    """Return all next-offsets that a group has committed; `admin` is aiokafka's client.

    Raises: KafkaError, retriable ones for an error of the whole group among them.
    """
    coordinator = await admin.find_coordinator(group)
    answer = await admin._send_request(OffsetFetchRequest(group, None), coordinator)
    return offsets_of(answer, group)


def offsets_of(answer: Any, group: str) -> Mapping[TopicPartition, int]:
    """Return the next-offsets of an answer in version 2 or 3. Raises KafkaError for any error."""
    offsets = {}
    _raise_for(answer.error_code, group)
    for topic, partitions in answer.topics:
        for partition, offset, _metadata, error_code in partitions:
            _raise_for(error_code, f"{group}, {topic}-{partition}")
            offsets[TopicPartition(topic, partition)] = offset
    return offsets


def _raise_for(error_code: int, what: str) -> None:
    if error_code:
        raise for_code(error_code)(f"committed offsets of {what}")
