"""aiokafka's records as the port's. Called by the two readers beside it."""

from collections.abc import Mapping, Sequence
from typing import Any

from infra.ports import LogRecord


def flatten(fetched: Mapping[Any, Sequence[Any]]) -> list[LogRecord]:
    """Return what a fetch brought, partition by partition, each in offset order."""
    return [
        LogRecord(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            append_time_ms=record.timestamp,
            key=record.key,
            value=record.value if record.value is not None else b"",  # a tombstone
            headers=record.headers,
        )
        for records in fetched.values()
        for record in records
    ]
