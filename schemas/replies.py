"""What `replies.v1` holds: records that are lists of Start | Delta | Closed, in log order.

Who counts and who does not is decided by `schemas.fold` alone; these are the facts it reads.
"""

from enum import StrEnum

from msgspec import Struct

from schemas.requests import Identity, Placement, ReplyHeader


class StopReason(StrEnum):
    """Why a choice ended, in engine terms; dialects rename it (`dialects`)."""

    END = "end"
    LENGTH = "length"
    STOP_SEQUENCE = "stop_sequence"
    REFUSAL = "refusal"


class CloseReason(StrEnum):
    """Why a reply was ended from outside (design rule 6.6)."""

    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    LATE = "late"
    ABANDONED = "abandoned"
    FAILED = "failed"


class Stop(Struct, frozen=True, kw_only=True):
    """Why one choice ended, with the stop string that matched where one did."""

    reason: StopReason
    stop_sequence: str | None = None


class StageTimes(Struct, frozen=True, kw_only=True):
    """When a worker took, started, first answered and finished a request; Unix milliseconds."""

    taken_ms: int
    started_ms: int
    first_token_ms: int
    finished_ms: int


class ChoiceTokens(Struct, frozen=True, kw_only=True):
    """Token ids of one segment of one choice, from index 0."""

    segment: int
    choice: int
    token_ids: tuple[int, ...]
    logprobs: "tuple[TokenLogprob, ...] | None" = None
    """By token; None where the request did not ask."""


class Terminal(Struct, frozen=True, kw_only=True):
    """The end of a reply: all stop reasons and all its token ids, so that a replay reads one
    record."""

    stops: tuple[Stop, ...]
    """By choice."""
    stages: StageTimes
    tokens: tuple[ChoiceTokens, ...]


class TopLogprob(Struct, frozen=True, kw_only=True):
    """One likely token at a position."""

    token_id: int
    logprob: float


class TokenLogprob(Struct, frozen=True, kw_only=True):
    """Log probabilities at one position: the drawn token's and the top ones'."""

    logprob: float
    top: tuple[TopLogprob, ...] = ()


class Start(Struct, frozen=True, kw_only=True):
    """A worker opens an attempt; from here on deltas of other attempts do not count."""

    request_id: str
    attempt: str
    worker: str
    """Incarnation, `worker-0/<uuid>`."""
    header: ReplyHeader
    identity: Identity
    placement: Placement
    traceparent: str | None = None
    alone: bool = False
    """The engine runs nothing else until this attempt's first token (design rule 6.11)."""


class Delta(Struct, frozen=True, kw_only=True):
    """Tokens of one choice, never text. The reply's last delta carries the terminal."""

    request_id: str
    attempt: str
    segment: int
    choice: int
    first_index: int
    token_ids: tuple[int, ...]
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache; in the attempt's first token delta."""
    stop: Stop | None = None
    """On the choice's last delta."""
    terminal: Terminal | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    """By token; None where the request did not ask."""
    ends_segment: bool = False
    """Reserved for tool loops."""


class Closed(Struct, frozen=True, kw_only=True):
    """The reply is ended from outside, by whoever had a reason; the first one in log order
    counts."""

    request_id: str
    reason: CloseReason
    by: str
    header: ReplyHeader
    identity: Identity
    placement: Placement
    message: str | None = None


class Entry(Struct, frozen=True, kw_only=True):
    """One of the three; exactly one field is set."""

    start: Start | None = None
    delta: Delta | None = None
    closed: Closed | None = None


class ReplyRecord(Struct, frozen=True, kw_only=True):
    """One record of `replies.v1`: what one engine step, start or close says to one reply
    partition."""

    entries: tuple[Entry, ...]


BOUNDARY_HEADER = "boundary"
"""Record header: `1` where the record starts or ends any reply, so that range reads can skip the
rest."""


def entry_of(fact: Start | Delta | Closed) -> Entry:
    """Wrap one fact as an entry."""
    if isinstance(fact, Start):
        return Entry(start=fact)
    if isinstance(fact, Delta):
        return Entry(delta=fact)
    return Entry(closed=fact)


def fact_of(entry: Entry) -> Start | Delta | Closed:
    """Unwrap an entry; raises ValueError where it holds none."""
    fact = entry.delta or entry.start or entry.closed
    if fact is None:
        raise ValueError("reply entry holds neither start, delta nor close")
    return fact


def is_boundary(facts: tuple[Start | Delta | Closed, ...]) -> bool:
    """Tell whether a record of these facts starts or ends any reply."""
    return any(not isinstance(fact, Delta) or fact.terminal is not None for fact in facts)
