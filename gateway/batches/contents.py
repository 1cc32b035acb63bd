"""Contents of files and batches on `batch-inputs.v1`: written piece by piece, read the same way.

Owns how bytes are cut into records and put together again, so that a file of any size passes
through a gateway in a few MiB of memory. Knows no form but lines. Called by the handlers and the
runner.
"""

from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from gateway.batches.ranges import read_from
from gateway.rereading import OpenReader
from infra.ports import Clock, LogWriter, TopicPartition
from schemas import limits
from schemas.batches import Content, ContentPiece, Piece
from schemas.codec import decode, encode
from schemas.topics import BATCH_INPUTS, batch_partition

__all__ = ["ContentWriter", "Contents", "LineSplitter"]

_RECORDS_AT_ONCE = 4
"""A few MiB each time."""


class ContentWriter:
    """Writes one content: `add` as often as bytes come, then `finish`."""

    def __init__(self, writer: LogWriter, owner_id: str) -> None:
        self._writer = writer
        self._owner_id = owner_id
        self._partition = batch_partition(owner_id)
        self._buffer = bytearray()
        self._pieces: list[Piece] = []
        self.size_bytes = 0

    async def add(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes; full pieces are written at once. Raises LogError."""
        self._buffer += data
        self.size_bytes += len(data)
        while len(self._buffer) >= limits.BATCH_PIECE_BYTES:
            await self._write(bytes(self._buffer[: limits.BATCH_PIECE_BYTES]))
            del self._buffer[: limits.BATCH_PIECE_BYTES]

    async def finish(self) -> Content:
        """Write the rest and return where everything stands. Raises LogError."""
        if self._buffer:
            await self._write(bytes(self._buffer))
            self._buffer.clear()
        return Content(partition=self._partition, pieces=tuple(self._pieces))

    async def _write(self, data: bytes) -> None:
        piece = ContentPiece(owner_id=self._owner_id, data=data)
        appended = await self._writer.send(
            BATCH_INPUTS, self._partition, encode(piece), key=self._owner_id.encode()
        )
        self._pieces.append(Piece(offset=appended.offset, size_bytes=len(data)))


class LineSplitter:
    """Cuts bytes into lines with their numbers, from 1; blank ones are left out, and of one that
    is too long only the number is kept."""

    def __init__(self, line_bytes_max: int = limits.BATCH_ITEM_BYTES_MAX) -> None:
        self._line_bytes_max = line_bytes_max
        self._number = 1
        self._rest = bytearray()
        self._too_long = False

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes | None]]:
        """Yield the lines that these bytes end."""
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._take(part)
            yield from self._line()
            self._number += 1
        self._take(rest)

    def end(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield the last line, where nothing ended it."""
        yield from self._line()

    def _take(self, part: bytes) -> None:
        if len(self._rest) + len(part) > self._line_bytes_max:
            self._too_long = True
            self._rest.clear()
        if not self._too_long:
            self._rest += part

    def _line(self) -> Iterator[tuple[int, bytes | None]]:
        line = bytes(self._rest).strip()
        if self._too_long:
            yield self._number, None
        elif line:
            yield self._number, line
        self._rest.clear()
        self._too_long = False


class Contents:
    """Writes and reads contents of one gateway."""

    def __init__(self, *, writer: LogWriter, open_reader: OpenReader, clock: Clock) -> None:
        self._writer = writer
        self._open_reader = open_reader
        self._clock = clock

    def write(self, owner_id: str) -> ContentWriter:
        """Begin a content."""
        return ContentWriter(self._writer, owner_id)

    async def lines(self, content: Content) -> AsyncGenerator[tuple[int, bytes | None], None]:
        """Yield the lines with their numbers, as `LineSplitter` does. Raises as `pieces`."""
        splitter = LineSplitter()
        async with aclosing(self.pieces(content)) as pieces:
            async for data in pieces:
                for line in splitter.feed(data):
                    yield line
        for line in splitter.end():
            yield line

    async def pieces(self, content: Content) -> AsyncGenerator[bytes, None]:
        """Yield the bytes in order. Raises OffsetUnreadable where they are not kept any more,
        LogUnavailable."""
        if not content.pieces:
            return
        reader = await self._open_reader()
        place = TopicPartition(BATCH_INPUTS, content.partition)
        first, wanted = content.pieces[0].offset, deque(content.pieces)
        try:
            async with aclosing(
                read_from(reader, self._clock, place, first, records_max=_RECORDS_AT_ONCE)
            ) as reading:
                async for records in reading:
                    for record in records:
                        if wanted and record.offset == wanted[0].offset:
                            wanted.popleft()
                            yield decode(record.value, ContentPiece).data
                    if not wanted:
                        return
        finally:
            await reader.close()
