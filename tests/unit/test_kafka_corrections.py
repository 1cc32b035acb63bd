"""What aiokafka does wrong, corrected for each client of a process."""

import asyncio
import logging
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.consumer import group_coordinator
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.errors import KafkaConnectionError, KafkaError, NotLeaderForPartitionError
from aiokafka.producer.message_accumulator import MessageAccumulator
from aiokafka.protocol.commit import OffsetFetchRequest_v1
from aiokafka.structs import TopicPartition

import infra.kafka
from infra.kafka.corrections import PartitionwiseOffsetFetch

BROKER_TODAY = {9: (1, 10)}
"""The versions of OffsetFetch that Kafka 4 takes."""
NOT_LEADER = 6


def test_every_consumer_asks_in_the_version_whose_errors_aiokafka_reads() -> None:
    """The consumers of whoever imports our Kafka, Faust's too, tell errors with the partitions."""
    assert infra.kafka
    assert group_coordinator.OffsetFetchRequest is PartitionwiseOffsetFetch
    request = group_coordinator.OffsetFetchRequest("workers", [("lanes", [0, 1])])
    assert isinstance(request.prepare(BROKER_TODAY), OffsetFetchRequest_v1)


@dataclass
class OldLeader:
    """A client whose one broker gives this error about the one partition."""

    error_code: int
    looks: int = 0
    """How often somebody wanted to know who leads."""
    asked: list[int] = field(default_factory=list)

    async def send(self, node_id: int, request: object) -> Any:
        """Answer ListOffsets in version 1."""
        self.asked.append(node_id)
        return SimpleNamespace(API_VERSION=1, topics=[("lanes", [(0, self.error_code, -1, 7)])])

    def force_metadata_update(self) -> None:
        """Count."""
        self.looks += 1


def looked_up(client: OldLeader) -> Any:
    """Let a fetcher look up where the partition begins."""
    fetcher = Fetcher.__new__(Fetcher)
    fetcher._client, fetcher._isolation_level = client, 0
    return asyncio.run(fetcher._proc_offset_request(3, {"lanes": [(0, -2)]}))


def test_a_broker_that_leads_no_more_makes_a_consumer_look_who_does() -> None:
    """Else it would be asked again and again, and nothing be fetched from it, for minutes."""
    client = OldLeader(NOT_LEADER)
    with pytest.raises(NotLeaderForPartitionError):
        looked_up(client)
    assert (client.asked, client.looks) == ([3], 1)


def test_a_leader_that_answers_is_believed() -> None:
    """Nobody asks who leads where the answer is good."""
    client = OldLeader(0)
    assert [offset for offset, _ in looked_up(client).values()] == [7]
    assert client.looks == 0


def test_a_connection_that_is_gone_is_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The next fetch is under way; what else a fetcher has to say is kept."""
    log = logging.getLogger("aiokafka.consumer.fetcher")
    log.error("Failed fetch messages from %s: %s", 1, KafkaConnectionError("closed"))
    log.error("Failed fetch messages from %s: %s", 1, NotLeaderForPartitionError())
    assert len(caplog.records) == 1 and "NotLeader" in caplog.text


def test_a_producer_that_is_given_up_fails_what_waits_for_another_try_and_nothing_else() -> None:
    """Sends that were tried, and those that were not, fail as they should; no callback raises, and
    none stays under way that was not so."""

    async def scenario() -> None:
        raised: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, told: raised.append(told))
        cluster = SimpleNamespace(leader_for_partition=lambda place: 0)
        accumulator = MessageAccumulator(cluster, 1_000, 0, 30)
        tried, waiting = TopicPartition("lanes", 0), TopicPartition("lanes", 1)
        sends = [await accumulator.add_message(tried, None, b"1", 1)]
        (batches, _) = accumulator.drain_by_nodes(())
        accumulator.reenqueue(batches[0][tried])
        sends.append(await accumulator.add_message(waiting, None, b"2", 1))
        accumulator.fail_all(KafkaError("closed"))
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        await asyncio.sleep(0)
        assert [type(outcome) for outcome in outcomes] == [KafkaError, KafkaError]
        assert raised == [] and not accumulator._pending_batches

    asyncio.run(scenario())
