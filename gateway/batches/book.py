"""What the facts of `batches.v1` add up to: every batch and file, and what became of it.

Pure: a fold over records, in log order within each partition, which is the order of one batch's
facts. Facts may come twice and late; the first of each kind counts, and nothing counts after a
batch's end but its deletion. Filled by `tail.py`; asked by the handlers and the runner.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas import limits
from schemas.batches import BatchCreated, BatchEnded, BatchRecord, BatchValidated, FileStored

__all__ = ["Batch", "BatchBook", "Counts", "StoredFile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Items of a batch by what became of them; their sum never changes."""

    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


@dataclass(slots=True, kw_only=True)
class Batch:
    """One batch as far as its facts have been read."""

    created: BatchCreated
    validated: BatchValidated | None = None
    cancel_ms: int | None = None
    """When its cancelling was asked for."""
    ended: BatchEnded | None = None
    deleted: bool = False

    @property
    def item_count(self) -> int | None:
        """How many items it has; None while nobody has counted them."""
        if self.created.item_count is not None:
            return self.created.item_count
        return None if self.validated is None else self.validated.item_count

    @property
    def counts(self) -> Counts:
        """Return its counts: all are being processed until the whole batch has ended."""
        ended = self.ended
        if ended is None or ended.faults:
            return Counts(processing=(self.item_count or 0) if ended is None else 0)
        return Counts(
            succeeded=ended.succeeded,
            errored=ended.errored,
            canceled=ended.canceled,
            expired=ended.expired,
        )


@dataclass(slots=True, kw_only=True)
class StoredFile:
    """One uploaded file."""

    stored: FileStored
    deleted: bool = False


@dataclass(slots=True)
class BatchBook:
    """All batches and files; mutated by `apply` only."""

    _batches: dict[str, Batch] = field(default_factory=dict)
    _files: dict[str, StoredFile] = field(default_factory=dict)
    _made_files_deleted: set[str] = field(default_factory=set)
    """Ids of files that batches made."""
    _unfinished: dict[str, Batch] = field(default_factory=dict)
    _order: deque[tuple[int, str]] = field(default_factory=deque)
    """Append time and id of everything kept, oldest first."""

    @property
    def full(self) -> bool:
        """True while no more batches and files may be made: memory for them is bounded."""
        return len(self._order) >= limits.BATCHES_KEPT_MAX

    @property
    def unfinished(self) -> tuple[Batch, ...]:
        """Return the batches that have not ended, oldest first."""
        return tuple(sorted(self._unfinished.values(), key=lambda batch: batch.created.created_ms))

    def batch(self, batch_id: str) -> Batch | None:
        """Return a batch, deleted ones too."""
        return self._batches.get(batch_id)

    def batches(self, org: str, workspace: str) -> Iterable[Batch]:
        """Yield the batches of a workspace that were not deleted, in no order."""
        for batch in self._batches.values():
            created = batch.created
            if created.org == org and created.workspace == workspace and not batch.deleted:
                yield batch

    def file(self, file_id: str) -> StoredFile | None:
        """Return an uploaded file, deleted ones too."""
        return self._files.get(file_id)

    def files(self, org: str, workspace: str) -> Iterable[FileStored]:
        """Yield the uploaded files of a workspace that were not deleted, in no order."""
        for file in self._files.values():
            stored = file.stored
            if stored.org == org and stored.workspace == workspace and not file.deleted:
                yield stored

    def made_file_deleted(self, file_id: str) -> bool:
        """Tell whether a file that a batch made was deleted."""
        return file_id in self._made_files_deleted

    def apply(self, record: BatchRecord, append_time_ms: int) -> None:
        """Take the next record of its partition."""
        self._forget_old(append_time_ms)
        if (created := record.created) is not None:
            self._create(created, append_time_ms)
        if (stored := record.file_stored) is not None and stored.file_id not in self._files:
            self._files[stored.file_id] = StoredFile(stored=stored)
            self._order.append((append_time_ms, stored.file_id))
        if (gone := record.file_deleted) is not None:
            self._delete_file(gone.file_id, append_time_ms)
        if (validated := record.validated) is not None:
            batch = self._unfinished.get(validated.batch_id)
            if batch is not None and batch.item_count is None:
                batch.validated = validated
        if (asked := record.cancel_requested) is not None:
            batch = self._unfinished.get(asked.batch_id)
            if batch is not None and batch.cancel_ms is None:
                batch.cancel_ms = asked.at_ms
        if (ended := record.ended) is not None:
            batch = self._unfinished.pop(ended.batch_id, None)
            if batch is not None:
                batch.ended = ended
        if (deleted := record.deleted) is not None:
            batch = self._batches.get(deleted.batch_id)
            if batch is not None and batch.ended is not None:
                batch.deleted = True

    def _create(self, created: BatchCreated, append_time_ms: int) -> None:
        if created.batch_id not in self._batches:
            batch = Batch(created=created)
            self._batches[created.batch_id] = self._unfinished[created.batch_id] = batch
            self._order.append((append_time_ms, created.batch_id))

    def _delete_file(self, file_id: str, append_time_ms: int) -> None:
        file = self._files.get(file_id)
        if file is not None:
            file.deleted = True
        elif file_id not in self._made_files_deleted:
            self._made_files_deleted.add(file_id)
            self._order.append((append_time_ms, file_id))

    def _forget_old(self, now_ms: int) -> None:
        while self._order and now_ms - self._order[0][0] >= limits.BATCH_FACTS_RETENTION_MS:
            _, name = self._order.popleft()
            self._batches.pop(name, None)
            self._unfinished.pop(name, None)
            self._files.pop(name, None)
            self._made_files_deleted.discard(name)
