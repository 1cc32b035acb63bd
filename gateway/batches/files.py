"""Files as OpenAI's API shows them: uploaded ones, and those that a batch made.

Owns the file object, which files there are, and where their bytes come from. A batch's output and
error files are no contents of their own: they are its results, written as lines when they are read.
Called by `file_calls.py` and `openai_batches.py`.
"""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from msgspec import Struct

from gateway.batches.book import Batch
from gateway.batches.rendering import Render, error_line, output_line
from gateway.batches.service import Batches
from gateway.errors import FileUnknown
from infra.ports import Clock
from schemas import limits
from schemas.batches import BatchCreated, Content, FileStored
from schemas.operations import KeyCreated
from schemas.requests import Dialect

__all__ = ["FILE_PREFIX", "File", "Files", "made_files", "uploaded"]

FILE_PREFIX: Final = "file-"
_BATCH_PREFIX: Final = "batch_"
_MADE: Final = re.compile(r"file-([0-9A-Za-z]{22})-(output|error)")


class Range(Struct, frozen=True, kw_only=True):
    """Results of a batch as lines."""

    batch: BatchCreated
    results_end: int
    render: Render


class File(Struct, frozen=True, kw_only=True):
    """One file."""

    file_id: str
    size_bytes: int
    created_ms: int
    expires_ms: int
    filename: str
    purpose: str
    source: Content | Range

    def shown(self) -> dict[str, object]:
        """Return the file object."""
        return {
            "id": self.file_id,
            "object": "file",
            "bytes": self.size_bytes,
            "created_at": self.created_ms // 1_000,
            "expires_at": self.expires_ms // 1_000,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


class Files:
    """The files of one gateway's book."""

    def __init__(self, batches: Batches, clock: Clock) -> None:
        self._batches = batches
        self._clock = clock

    async def find(self, key: KeyCreated, file_id: str) -> File:
        """Return a file of the key's workspace. Raises FileUnknown, LogAway."""
        found = self._look(key, file_id)
        if found is None and file_id.startswith(FILE_PREFIX):
            made = _MADE.fullmatch(file_id)
            owner_id = file_id if made is None else _BATCH_PREFIX + made[1]
            await self._batches.catch_up(owner_id)  # another gateway may have stored it just now
            found = self._look(key, file_id)
        if found is None:
            raise FileUnknown("no such file")
        return found

    async def newest(self, key: KeyCreated) -> list[File]:
        """Return the files of the key's workspace, newest first. Raises LogAway."""
        await self._batches.catch_up()
        book = self._batches.book
        files = [uploaded(stored) for stored in book.files(key.org, key.workspace)]
        for batch in book.batches(key.org, key.workspace):
            files += [
                file for file in made_files(batch) if not book.made_file_deleted(file.file_id)
            ]
        kept = [file for file in files if self._is_kept(file)]
        return sorted(kept, key=lambda file: (file.created_ms, file.file_id), reverse=True)

    async def read(self, file: File) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a file. Raises OffsetUnreadable, LogUnavailable."""
        source = file.source
        if isinstance(source, Content):
            async with aclosing(self._batches.contents.pieces(source)) as pieces:
                async for piece in pieces:
                    yield piece
            return
        batch = source.batch
        async with aclosing(self._batches.results.read(batch, source.results_end)) as reading:
            async for items in reading:
                yield b"".join(source.render(batch.batch_id, item) for item in items)

    def _look(self, key: KeyCreated, file_id: str) -> File | None:
        made, book = _MADE.fullmatch(file_id), self._batches.book
        if made is not None:
            batch = book.batch(_BATCH_PREFIX + made[1])
            if batch is None or not _is_of(key, batch.created) or book.made_file_deleted(file_id):
                return None
            found = [file for file in made_files(batch) if file.file_id == file_id]
        else:
            known = book.file(file_id)
            if known is None or known.deleted or not _is_of(key, known.stored):
                return None
            found = [uploaded(known.stored)]
        return found[0] if found and self._is_kept(found[0]) else None

    def _is_kept(self, file: File) -> bool:
        return self._clock.now_ms() < file.expires_ms


def made_files(batch: Batch) -> list[File]:
    """Return the files that a batch made: its output, its errors, or none."""
    created, ended = batch.created, batch.ended
    if created.dialect is not Dialect.OPENAI or ended is None or ended.faults:
        return []
    failed = ended.errored + ended.canceled + ended.expired
    wanted = (
        ("output", ended.succeeded, ended.output_bytes, output_line),
        ("error", failed, ended.errors_bytes, error_line),
    )
    stem = created.batch_id.removeprefix(_BATCH_PREFIX)
    return [
        File(
            file_id=f"{FILE_PREFIX}{stem}-{name}",
            size_bytes=size_bytes,
            created_ms=ended.at_ms,
            expires_ms=created.created_ms + limits.BATCH_RESULTS_KEPT_MS,
            filename=f"{created.batch_id}_{name}.jsonl",
            purpose="batch_output",
            source=Range(batch=created, results_end=ended.results_end, render=render),
        )
        for name, count, size_bytes, render in wanted
        if count
    ]


def uploaded(stored: FileStored) -> File:
    """Return an uploaded file."""
    return File(
        file_id=stored.file_id,
        size_bytes=stored.size_bytes,
        created_ms=stored.created_ms,
        expires_ms=stored.expires_ms,
        filename=stored.filename,
        purpose=stored.purpose,
        source=stored.content,
    )


def _is_of(key: KeyCreated, owned: BatchCreated | FileStored) -> bool:
    return (owned.org, owned.workspace) == (key.org, key.workspace)
