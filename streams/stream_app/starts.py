"""Where delivery starts and may end, asked apart from Faust, which leaves records out at times."""

from collections.abc import Mapping

from infra.ports import LogAdmin, LogReader, TopicPartition
from schemas import limits
from schemas.topics import STREAM_APP_ID, USAGE


async def delivery_starts(admin: LogAdmin, reader: LogReader) -> Mapping[int, int]:
    """Return where delivery of each partition of `usage.v1` starts: at the group's commit, or at
    the oldest record where there is none or retention has passed it. Raises LogUnavailable."""
    parts = [TopicPartition(USAGE, number) for number in range(limits.USAGE_PARTITIONS)]
    bounds = await reader.bounds(parts)
    committed = await admin.group_offsets(STREAM_APP_ID)
    return {part.partition: max(bounds[part].start, committed.get(part, 0)) for part in parts}


async def delivery_ends(reader: LogReader) -> Mapping[int, int]:
    """Return the end of each partition of `usage.v1`. Raises LogUnavailable."""
    parts = [TopicPartition(USAGE, number) for number in range(limits.USAGE_PARTITIONS)]
    return {part.partition: bound.end for part, bound in (await reader.bounds(parts)).items()}
