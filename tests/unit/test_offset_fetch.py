"""What a group has committed: an error of the whole group is an error, for each who asks."""

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer import group_coordinator
from aiokafka.errors import GroupLoadInProgressError, KafkaError, NotCoordinatorForGroupError
from aiokafka.protocol.commit import OffsetFetchRequest_v1, OffsetFetchResponse_v3

import infra.kafka
from infra.kafka.offset_fetch import PartitionwiseOffsetFetch, offsets_of

BROKER_TODAY = {9: (1, 10)}
"""The versions of OffsetFetch that Kafka 4 takes."""


@pytest.mark.parametrize(
    ("code", "kind"), [(16, NotCoordinatorForGroupError), (14, GroupLoadInProgressError)]
)
def test_an_error_of_the_whole_group_is_not_taken_for_nothing(
    code: int, kind: type[KafkaError]
) -> None:
    """It comes beside no partitions, and may be asked again."""
    with pytest.raises(kind) as raised:
        offsets_of(OffsetFetchResponse_v3(0, [], code), "workers")
    assert raised.value.retriable


def test_an_error_of_one_partition_is_raised() -> None:
    """Nothing is told in place of what is not known."""
    answer = OffsetFetchResponse_v3(0, [("lanes", [(0, 7, "", 0), (1, -1, "", 3)])], 0)
    with pytest.raises(KafkaError, match="lanes-1"):
        offsets_of(answer, "workers")


def test_offsets_are_told_by_partition() -> None:
    """As they were committed; -1 where nothing was."""
    answer = OffsetFetchResponse_v3(0, [("lanes", [(0, 7, "", 0), (1, -1, "", 0)])], 0)
    assert offsets_of(answer, "workers") == {
        TopicPartition("lanes", 0): 7,
        TopicPartition("lanes", 1): -1,
    }


def test_every_consumer_asks_in_the_version_whose_errors_aiokafka_reads() -> None:
    """The consumers of whoever imports our Kafka, Faust's too, tell errors with the partitions."""
    assert infra.kafka
    assert group_coordinator.OffsetFetchRequest is PartitionwiseOffsetFetch
    request = group_coordinator.OffsetFetchRequest("workers", [("lanes", [0, 1])])
    assert isinstance(request.prepare(BROKER_TODAY), OffsetFetchRequest_v1)
