"""What the batch topics hold: facts about batches and files, their contents, results of items.

Facts only; what they add up to is decided by `gateway/batches/book.py`, from the order of the log
alone. Contents and results lie on topics of their own, so that who follows the facts never reads
them.
"""

from enum import StrEnum

from msgspec import Struct

from schemas.requests import Dialect


class ItemOutcome(StrEnum):
    """How one item of a batch ended, in Anthropic's words."""

    SUCCEEDED = "succeeded"
    ERRORED = "errored"
    CANCELED = "canceled"
    EXPIRED = "expired"


class Piece(Struct, frozen=True, kw_only=True):
    """Where one record of a content stands."""

    offset: int
    size_bytes: int


class Content(Struct, frozen=True, kw_only=True):
    """Where the bytes of a file or of a batch's input stand on `batch-inputs.v1`, in order."""

    partition: int
    pieces: tuple[Piece, ...]


class ContentPiece(Struct, frozen=True, kw_only=True):
    """One record of `batch-inputs.v1`: bytes cut anywhere."""

    owner_id: str
    """The file, or the batch where its input came with it."""
    data: bytes


class BatchCreated(Struct, frozen=True, kw_only=True):
    """A batch was accepted; all that running it needs."""

    batch_id: str
    org: str
    workspace: str
    key_id: str
    dialect: Dialect
    """Whose API made it: Anthropic's, or OpenAI's Chat Completions for all endpoints of it."""
    dialect_version: str
    endpoint: str
    """Path that each item is a request of."""
    pool: str
    input_id: str
    """The file that holds the items; the batch's own id where they came with it."""
    content: Content
    item_count: int | None = None
    """None until the input was looked through (`BatchValidated`)."""
    created_ms: int
    expires_ms: int
    results_partition: int
    results_floor: int
    """First offset that can hold any of its results."""
    metadata: str | None = None
    """JSON object."""
    fingerprint: str | None = None
    """Of the request that made it under an idempotency key."""


class BatchValidated(Struct, frozen=True, kw_only=True):
    """The input was looked through and is good."""

    batch_id: str
    item_count: int
    at_ms: int


class CancelRequested(Struct, frozen=True, kw_only=True):
    """The client wants no more items started."""

    batch_id: str
    at_ms: int


class InputFault(Struct, frozen=True, kw_only=True):
    """What is wrong with an input."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchEnded(Struct, frozen=True, kw_only=True):
    """A batch has all its results, or an input that was no good. Counts are those of its results
    below `results_end`."""

    batch_id: str
    at_ms: int
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0
    results_end: int = 0
    output_bytes: int = 0
    """Size of OpenAI's output file."""
    errors_bytes: int = 0
    """Size of OpenAI's error file."""
    faults: tuple[InputFault, ...] = ()
    """Of an input that was no good: nothing was run."""


class BatchDeleted(Struct, frozen=True, kw_only=True):
    """The client deleted a batch that had ended."""

    batch_id: str


class FileStored(Struct, frozen=True, kw_only=True):
    """A file was uploaded whole."""

    file_id: str
    org: str
    workspace: str
    purpose: str
    filename: str
    size_bytes: int
    content: Content
    created_ms: int
    expires_ms: int
    fingerprint: str | None = None
    """Of what was uploaded under an idempotency key."""


class FileDeleted(Struct, frozen=True, kw_only=True):
    """The client deleted a file, its own or one that a batch made."""

    file_id: str


class BatchRecord(Struct, frozen=True, kw_only=True):
    """One record of `batches.v1`; exactly one field is set."""

    created: BatchCreated | None = None
    validated: BatchValidated | None = None
    cancel_requested: CancelRequested | None = None
    ended: BatchEnded | None = None
    deleted: BatchDeleted | None = None
    file_stored: FileStored | None = None
    file_deleted: FileDeleted | None = None


class ItemEnded(Struct, frozen=True, kw_only=True):
    """One item's result; of several of one index the first in log order counts."""

    index: int
    """Its line in the input, from 0."""
    custom_id: str
    outcome: ItemOutcome
    status: int
    """The HTTP status that a call of its own would have got; 0 where it was not run."""
    request_id: str
    body: bytes
    """JSON that such a call would have got; empty where it was not run."""


class ItemsEnded(Struct, frozen=True, kw_only=True):
    """One record of `batch-results.v1`; its header `batch` names the batch."""

    batch_id: str
    items: tuple[ItemEnded, ...]


BatchFact = (
    BatchCreated
    | BatchValidated
    | CancelRequested
    | BatchEnded
    | BatchDeleted
    | FileStored
    | FileDeleted
)


def owner_of(fact: BatchFact) -> str:
    """Return the id whose partition a fact belongs to."""
    return fact.file_id if isinstance(fact, FileStored | FileDeleted) else fact.batch_id


def record_of(fact: BatchFact) -> BatchRecord:
    """Wrap one fact as a record."""
    match fact:
        case BatchCreated():
            return BatchRecord(created=fact)
        case BatchValidated():
            return BatchRecord(validated=fact)
        case CancelRequested():
            return BatchRecord(cancel_requested=fact)
        case BatchEnded():
            return BatchRecord(ended=fact)
        case BatchDeleted():
            return BatchRecord(deleted=fact)
        case FileStored():
            return BatchRecord(file_stored=fact)
        case FileDeleted():
            return BatchRecord(file_deleted=fact)
