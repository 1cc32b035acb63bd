"""What a request and a token cost the log, counted in records and bytes on the real platform.

Times are noisy, counts are not: a change that adds a record to each request or doubles a delta's
bytes fails here.
"""

import asyncio
import json
import threading
import time
from dataclasses import dataclass

import httpx

from infra.kafka import KafkaReader
from infra.ports import LogRecord, TopicPartition
from schemas import limits
from schemas.codec import decode
from schemas.replies import ReplyRecord
from schemas.topics import QUOTA_DEMANDS, REPLIES, USAGE, requests_topic
from tests.integration.platform import Platform

REQUESTS = requests_topic("smollm2-135m-instruct")
TOKENS = 32
PLACES = [
    *(TopicPartition(REQUESTS, lane) for lane in range(limits.LANES)),
    *(TopicPartition(REPLIES, partition) for partition in range(limits.REPLY_PARTITIONS)),
    *(TopicPartition(USAGE, partition) for partition in range(limits.USAGE_PARTITIONS)),
    TopicPartition(QUOTA_DEMANDS, 0),
]


@dataclass
class Written:
    """What some requests wrote."""

    records: dict[str, list[LogRecord]]
    took_ms: float
    """How long the requests took, one after the other where they were."""

    def count(self, topic: str) -> int:
        """Return the number of records."""
        return len(self.records[topic])


def written_by(platform: Platform, requests: int, concurrency: int, *, stream: bool) -> Written:
    """Send requests and return all records that they caused."""
    kafka = platform.status()["endpoints"]["kafka"]
    before = asyncio.run(_ends(kafka))
    threads = [
        threading.Thread(target=_ask, args=(platform, requests // concurrency, stream))
        for _ in range(concurrency)
    ]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_ms = 1_000 * (time.monotonic() - began_s)
    platform.check_audit()  # waits until all usage is there
    return Written(records=asyncio.run(_read(kafka, before)), took_ms=took_ms)


def _ask(platform: Platform, count: int, stream: bool) -> None:
    headers = {"authorization": f"Bearer {platform.key}"}
    body = {
        "model": "smollm2-135m-instruct",
        "messages": [{"role": "user", "content": "Tell me a story about a river."}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "stream": stream,
    }
    with httpx.Client(base_url=platform.url, headers=headers, timeout=60, verify=False) as client:
        for _ in range(count):
            assert client.post("/v1/chat/completions", json=body).status_code == 200


async def _ends(kafka: str) -> dict[TopicPartition, int]:
    reader = KafkaReader(kafka, client_id="counts")
    await reader.start()
    bounds = await reader.bounds(PLACES)
    await reader.close()
    return {place: bounds[place].end for place in PLACES}


async def _read(kafka: str, before: dict[TopicPartition, int]) -> dict[str, list[LogRecord]]:
    after = await _ends(kafka)
    reader = KafkaReader(kafka, client_id="counts")
    await reader.start()
    reader.assign(before)
    records: dict[str, list[LogRecord]] = {place.topic: [] for place in PLACES}
    async with asyncio.timeout(30):
        while any(reader.position(place) < after[place] for place in PLACES):
            for record in await reader.poll(timeout_ms=200, max_records=1_000):
                records[record.topic].append(record)
    await reader.close()
    return records


def test_a_whole_reply_alone_costs_few_records(platform: Platform) -> None:
    """A request, a start, an end, a usage event; more only for each quarter second of tokens."""
    written = written_by(platform, requests=4, concurrency=1, stream=False)
    assert written.count(REQUESTS) == 4
    assert written.count(USAGE) == 4
    assert written.count(QUOTA_DEMANDS) == 0, "the org has no limits"
    assert 8 <= written.count(REPLIES) <= 8 + written.took_ms / limits.WHOLE_REPLY_HOLD_MS


def test_a_stream_alone_costs_few_records(platform: Platform) -> None:
    """Alone: one request, one start, at most one record a token, one usage event; small ones."""
    written = written_by(platform, requests=4, concurrency=1, stream=True)
    assert written.count(REQUESTS) == 4
    assert written.count(USAGE) == 4
    assert written.count(REPLIES) <= 4 * (1 + TOKENS)
    deltas = [
        record
        for record in written.records[REPLIES]
        if all(
            entry.delta and not entry.delta.terminal
            for entry in decode(record.value, ReplyRecord).entries
        )
    ]
    assert max(len(record.value) for record in deltas) <= 230
    total_bytes = sum(len(record.value) for found in written.records.values() for record in found)
    assert total_bytes <= 4 * (1_500 + 130 * TOKENS), json.dumps(total_bytes)


def test_requests_together_share_records(platform: Platform) -> None:
    """Sixteen at once: a step is one record per reply partition, however many replies it serves."""
    written = written_by(platform, requests=32, concurrency=16, stream=True)
    assert written.count(REQUESTS) == 32
    assert written.count(USAGE) == 32
    entries = sum(
        len(decode(record.value, ReplyRecord).entries) for record in written.records[REPLIES]
    )
    assert entries <= 32 * (1 + TOKENS)
    assert written.count(REPLIES) <= entries / 2
