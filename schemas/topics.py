"""The topics table: names, partitions, keys, retention, and who may write and read each.

`millstream apply` makes exactly these. Names end in their version; a breaking change is a new
topic.
"""

import re
import zlib
from dataclasses import dataclass
from enum import StrEnum

from schemas import limits

POOL_PATTERN = re.compile(r"[a-z0-9-]{1,64}")


class Role(StrEnum):
    """Who touches a topic; becomes ACLs."""

    GATEWAY = "gateway"
    WORKER = "worker"
    METERING = "metering"
    STREAM_APP = "stream-app"
    OPERATOR = "operator"


_EVERYONE = frozenset(Role)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic as `apply` makes it."""

    name: str
    partitions: int
    key: str
    retention_ms: int | None
    """None = for ever."""
    writers: frozenset[Role]
    readers: frozenset[Role]
    compacted: bool = False


REPLIES = "replies.v1"
IDEMPOTENCY = "idempotency.v1"
BATCHES = "batches.v1"
BATCH_INPUTS = "batch-inputs.v1"
BATCH_RESULTS = "batch-results.v1"
USAGE = "usage.v1"
USAGE_TOTALS = "usage-totals.v1"
QUOTA_DEMANDS = "quota-demands.v1"
QUOTA_GRANTS = "quota-grants.v1"
FLEET_STATUS = "fleet-status.v1"
CONTROL = "control.v1"
DEAD_LETTERS = "dead-letters.v1"

STREAM_APP_ID = "stream-app"
FAUST_TABLES = ("totals", "seen")


def requests_topic(pool: str) -> str:
    """Return the interactive request topic of a pool; raises ValueError for a bad pool name."""
    if not POOL_PATTERN.fullmatch(pool):
        raise ValueError(f"pool {pool!r}: expected {POOL_PATTERN.pattern}")
    return f"requests.{pool}.interactive.v1"


def usage_partition(org: str) -> int:
    """Return the partition of `usage.v1` that holds everything of an org."""
    return zlib.crc32(org.encode()) % limits.USAGE_PARTITIONS


def idempotency_partition(name: str) -> int:
    """Return the partition of `idempotency.v1` for a scope or a request id."""
    return zlib.crc32(name.encode()) % limits.IDEMPOTENCY_PARTITIONS


def batch_partition(owner_id: str) -> int:
    """Return the partition of each of the batch topics for a batch or a file."""
    return zlib.crc32(owner_id.encode()) % limits.BATCH_PARTITIONS


def workers_group(pool: str) -> str:
    """Return the consumer group that all workers of a pool share."""
    return f"workers.{pool}"


def topics(pool: str) -> tuple[Topic, ...]:
    """Return every topic that a platform serving `pool` needs."""
    core = (*_token_path(pool), *_batches(), *_usage(), *_quota())
    return (*core, *_operations(), *_stream_app())


def _token_path(pool: str) -> tuple[Topic, ...]:
    gateway, worker = Role.GATEWAY, Role.WORKER
    return (
        Topic(
            name=requests_topic(pool),
            partitions=limits.LANES,
            key="lane chosen by the router",
            retention_ms=limits.REQUESTS_RETENTION_MS,
            writers=frozenset({gateway}),
            readers=frozenset({worker, Role.OPERATOR}),
        ),
        Topic(
            name=REPLIES,
            partitions=limits.REPLY_PARTITIONS,
            key="reply partition preferred by one gateway",
            retention_ms=limits.REPLIES_RETENTION_MS,
            writers=frozenset({worker, gateway}),
            readers=frozenset({worker, gateway, Role.OPERATOR}),
        ),
        Topic(
            name=IDEMPOTENCY,  # never compacted: claims that lost or were released must stay
            partitions=limits.IDEMPOTENCY_PARTITIONS,
            key="hash of org, workspace and idempotency key",
            retention_ms=limits.IDEMPOTENCY_RETENTION_MS,
            writers=frozenset({gateway}),
            readers=frozenset({gateway, Role.OPERATOR}),
        ),
    )


def _batches() -> tuple[Topic, ...]:
    """Return the topics of batches; who follows the facts need not read contents and results."""
    kept = {
        BATCHES: limits.BATCH_FACTS_RETENTION_MS,
        BATCH_INPUTS: limits.BATCH_CONTENTS_RETENTION_MS,
        BATCH_RESULTS: limits.BATCH_CONTENTS_RETENTION_MS,
    }
    return tuple(
        Topic(
            name=name,
            partitions=limits.BATCH_PARTITIONS,
            key="batch or file",
            retention_ms=retention_ms,
            writers=frozenset({Role.GATEWAY}),
            readers=frozenset({Role.GATEWAY, Role.OPERATOR}),
        )
        for name, retention_ms in kept.items()
    )


def _usage() -> tuple[Topic, ...]:
    return (
        Topic(
            name=USAGE,
            partitions=limits.USAGE_PARTITIONS,
            key="org",
            retention_ms=limits.USAGE_RETENTION_MS,
            writers=frozenset({Role.WORKER}),
            readers=frozenset({Role.METERING, Role.STREAM_APP, Role.OPERATOR}),
        ),
        Topic(
            name=USAGE_TOTALS,
            partitions=limits.USAGE_PARTITIONS,
            key="org",
            retention_ms=None,
            compacted=True,
            writers=frozenset({Role.STREAM_APP}),
            readers=frozenset({Role.GATEWAY, Role.OPERATOR}),
        ),
    )


def _quota() -> tuple[Topic, ...]:
    """Return the topics of one partition each: one order of all demands and grants."""
    gateway, service = Role.GATEWAY, Role.STREAM_APP
    return (
        Topic(
            name=QUOTA_DEMANDS,
            partitions=1,
            key="org",
            retention_ms=limits.QUOTA_RETENTION_MS,
            writers=frozenset({gateway}),
            readers=frozenset({service}),
        ),
        Topic(
            name=QUOTA_GRANTS,
            partitions=1,
            key="gateway",
            retention_ms=limits.QUOTA_RETENTION_MS,
            writers=frozenset({service}),
            readers=frozenset({gateway, service, Role.OPERATOR}),
        ),
    )


def _operations() -> tuple[Topic, ...]:
    return (
        Topic(
            name=FLEET_STATUS,
            partitions=1,
            key="process",
            retention_ms=limits.FLEET_STATUS_RETENTION_MS,
            writers=_EVERYONE,
            readers=_EVERYONE,
        ),
        Topic(
            name=CONTROL,
            partitions=1,
            key="entity",
            retention_ms=None,
            writers=frozenset({Role.OPERATOR}),
            readers=_EVERYONE,
        ),
        Topic(
            name=DEAD_LETTERS,
            partitions=1,
            key="source",
            retention_ms=limits.DEAD_LETTERS_RETENTION_MS,
            writers=_EVERYONE,
            readers=frozenset({Role.OPERATOR}),
        ),
    )


def _stream_app() -> tuple[Topic, ...]:
    """Return the topics that Faust keeps for itself, by the names it gives them."""
    own = frozenset({Role.STREAM_APP})
    tables = (
        Topic(
            name=f"{STREAM_APP_ID}-{table}-changelog",
            partitions=limits.USAGE_PARTITIONS,
            key="org or request id",
            retention_ms=None,
            compacted=True,
            writers=own,
            readers=own,
        )
        for table in FAUST_TABLES
    )
    leader = Topic(
        name=f"{STREAM_APP_ID}-__assignor-__leader",
        partitions=1,
        key="none",
        retention_ms=limits.FLEET_STATUS_RETENTION_MS,
        writers=own,
        readers=own,
    )
    return (*tables, leader)
