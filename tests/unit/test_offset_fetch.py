"""What a group has committed: an error of the whole group is an error, for each who asks."""

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import GroupLoadInProgressError, KafkaError, NotCoordinatorForGroupError
from aiokafka.protocol.commit import OffsetFetchResponse_v3

from infra.kafka.offset_fetch import offsets_of


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
