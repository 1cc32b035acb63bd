"""Events that run the platform: control (keys, topics, limits), fleet status, dead letters."""

from enum import StrEnum

from msgspec import Struct


class ProcessState(StrEnum):
    """Where a process stands; routers choose among `serving` ones."""

    LOADING = "loading"
    SPARE = "spare"
    SERVING = "serving"
    DRAINING = "draining"


class KeyCreated(Struct, frozen=True, kw_only=True):
    """An API key exists; only its SHA-256 is kept."""

    key_id: str
    secret_sha256: str
    org: str
    workspace: str
    tier: str
    admin: bool
    created_ms: int


class KeyRevoked(Struct, frozen=True, kw_only=True):
    """An API key no longer authenticates."""

    key_id: str
    revoked_ms: int


class TopicCreated(Struct, frozen=True, kw_only=True):
    """`apply` made a topic; the incarnation tells locators of an earlier one apart."""

    topic: str
    partitions: int
    incarnation: int


class LimitsSet(Struct, frozen=True, kw_only=True):
    """An org's limits from now on, all of them; None = unlimited."""

    org: str
    set_ms: int
    requests_per_minute: int | None = None
    input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    concurrency: int | None = None
    tokens_per_month: int | None = None


class ControlRecord(Struct, frozen=True, kw_only=True):
    """One fact of `control.v1`; exactly one field is set."""

    key_created: KeyCreated | None = None
    key_revoked: KeyRevoked | None = None
    topic_created: TopicCreated | None = None
    limits_set: LimitsSet | None = None


class ProcessReported(Struct, frozen=True, kw_only=True):
    """A process says once a second that it lives, on `fleet-status.v1`."""

    process: str
    incarnation: str
    """`<process>/<uuid>`, new at each start."""
    kind: str
    """gateway | worker | metering | stream-app."""
    state: ProcessState
    pool: str | None = None
    lanes: tuple[int, ...] = ()
    member_id: str | None = None
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    left: bool = False
    """True in the last report of an orderly stop."""


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A record that could not be handled, with where it stood and why."""

    topic: str
    partition: int
    offset: int
    source: str
    reason: str
    value: bytes
