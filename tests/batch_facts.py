"""Facts of batches for tests: valid by default, each argument overrides one."""

from schemas.batches import BatchCreated, BatchEnded, Content, FileStored
from schemas.requests import Dialect

CONTENT = Content(partition=0, pieces=())


def created(
    batch_id: str = "msgbatch_1",
    *,
    org: str = "acme",
    workspace: str = "default",
    item_count: int | None = 3,
    created_ms: int = 1_000,
    dialect: Dialect = Dialect.ANTHROPIC,
    endpoint: str = "/v1/messages",
) -> BatchCreated:
    """Return a batch's first fact."""
    return BatchCreated(
        batch_id=batch_id,
        org=org,
        workspace=workspace,
        key_id="key_1",
        dialect=dialect,
        dialect_version="2023-06-01",
        endpoint=endpoint,
        pool="test",
        input_id=batch_id,
        content=CONTENT,
        item_count=item_count,
        created_ms=created_ms,
        expires_ms=created_ms + 86_400_000,
        results_partition=0,
        results_floor=0,
    )


def ended(
    batch_id: str = "msgbatch_1",
    *,
    at_ms: int = 2_000,
    succeeded: int = 0,
    errored: int = 0,
    canceled: int = 0,
    expired: int = 0,
) -> BatchEnded:
    """Return a batch's end."""
    return BatchEnded(
        batch_id=batch_id,
        at_ms=at_ms,
        succeeded=succeeded,
        errored=errored,
        canceled=canceled,
        expired=expired,
    )


def stored(file_id: str = "file-1", *, created_ms: int = 1_000) -> FileStored:
    """Return a file's first fact."""
    return FileStored(
        file_id=file_id,
        org="acme",
        workspace="default",
        purpose="batch",
        filename="in.jsonl",
        size_bytes=1,
        content=CONTENT,
        created_ms=created_ms,
        expires_ms=created_ms + 86_400_000,
    )
