"""Facts about batches and files, appended and read back.

Owns this gateway's sends to `batches.v1`. What the facts add up to is the book's; a caller that
has its fact acknowledged finds it there.
"""

from gateway.batches.tail import BatchTail
from gateway.errors import LogAway
from infra.errors import LogError
from infra.ports import LogWriter
from schemas.batches import BatchFact, owner_of, record_of
from schemas.codec import encode
from schemas.topics import BATCHES, batch_partition

__all__ = ["Ledger"]


class Ledger:
    """Appends facts."""

    def __init__(self, *, writer: LogWriter, tail: BatchTail) -> None:
        self._writer = writer
        self._tail = tail

    async def append(self, fact: BatchFact) -> None:
        """Append a fact and wait until this gateway has read it back.

        Raises: LogAway where that is not certain in time: it may stand, and may be repeated.
        """
        name = owner_of(fact)
        partition = batch_partition(name)
        try:
            appended = await self._writer.send(
                BATCHES, partition, encode(record_of(fact)), key=name.encode()
            )
            await self._tail.read_up_to(partition, appended.offset)
        except LogError as error:
            raise LogAway("Service unavailable: the batch could not be recorded") from error
