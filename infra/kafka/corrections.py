"""Faults of aiokafka 0.14, corrected for all of this process.

The first two lose a consumer's place when brokers die or stand still, in Faust's as well. Each has
a test of its own, and asks for another look with each new version of aiokafka.

- **A moved coordinator is taken for "nothing committed".** From version 2 on the answer to
  OffsetFetch tells an error of the whole group in a field of its own, beside no partitions
  (KIP-88). aiokafka reads the partitions alone, and begins at the oldest record. Version 1 tells
  the error with each partition, where aiokafka looks.
- **An old leader is asked for ever where a partition begins.** A partition without a commit is
  looked up at its leader; one that is not it any more says so, and aiokafka asks it again and
  again, without a look at who leads now, and fetches nothing from that broker meanwhile: up to the
  age at which it asks for metadata anyway, minutes.
- **A lost connection is an error in the log**, once for each fetch, also where we dropped it
  ourselves (`reader.cut_idle_fetches`) and the next fetch is under way.
- **A producer that is given up trips over what it would have sent again.** From a batch's first try
  on its end removes it from the set of those under way; one that waits for another try is not in
  there, and where all that is left fails at once (`writer._release` does that after a broker was
  away) each such batch is a KeyError in the log. No send is affected.
"""

import logging
from typing import Any

from aiokafka.consumer import group_coordinator
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.producer.message_accumulator import MessageAccumulator
from aiokafka.protocol.api import Request
from aiokafka.protocol.commit import OffsetFetchRequest, OffsetFetchRequest_v1

__all__ = ["PartitionwiseOffsetFetch", "correct_clients"]


class PartitionwiseOffsetFetch(Request[OffsetFetchRequest_v1]):  # type: ignore[misc]  # untyped
    """OffsetFetch in version 1 alone."""

    API_KEY = OffsetFetchRequest.API_KEY

    def __init__(self, group: str, partitions: list[tuple[str, list[int]]]) -> None:
        """Ask for these partitions, by topic."""
        self._group, self._partitions = group, partitions

    def build(self, request_struct_class: type[OffsetFetchRequest_v1]) -> OffsetFetchRequest_v1:
        """Return the request as it is sent."""
        return request_struct_class(self._group, self._partitions)


_look_up = Fetcher._proc_offset_request


async def _look_up_and_learn(fetcher: Any, node_id: int, topic_data: Any) -> Any:
    """Look offsets up at a broker; where it does not lead any more, find out who does."""
    try:
        return await _look_up(fetcher, node_id, topic_data)
    except KafkaError as error:
        if error.invalid_metadata:
            fetcher._client.force_metadata_update()
        raise


def _is_news(record: logging.LogRecord) -> bool:
    """Tell whether a line of the fetcher tells more than that a connection is gone."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    lost = any(isinstance(argument, KafkaConnectionError) for argument in arguments)
    return not (lost and record.msg.startswith("Failed fetch messages"))


_fail_all = MessageAccumulator.fail_all


def _fail_all_that_is_left(accumulator: Any, exception: BaseException) -> None:
    """Fail every batch; those that wait for another try count as under way, where they end."""
    for batches in accumulator._batches.values():
        accumulator._pending_batches.update(batch for batch in batches if batch.retry_count > 0)
    _fail_all(accumulator, exception)


def correct_clients() -> None:
    """Correct every client of this process; once or more often."""
    MessageAccumulator.fail_all = _fail_all_that_is_left
    group_coordinator.OffsetFetchRequest = PartitionwiseOffsetFetch
    Fetcher._proc_offset_request = _look_up_and_learn
    logging.getLogger(Fetcher.__module__).addFilter(_is_news)
