"""All that a group has committed, for those who are not members of it.

aiokafka's own call reads the partitions of the answer alone, and so takes an error of the whole
group, told beside none, for "nothing is committed".
"""

from collections.abc import Mapping
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import for_code
from aiokafka.protocol.commit import OffsetFetchRequest


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
