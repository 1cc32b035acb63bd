"""Dead letters: records that could not be handled, kept for the operator on `dead-letters.v1`.

Owns the shape and the rate limit; not the decision that a record is poison. Called by every reader
of a topic.
"""

from infra.ports import Clock, LogRecord, LogWriter
from schemas import limits, topics
from schemas.codec import encode
from schemas.operations import DeadLetter

_MINUTE_MS = 60_000
_REASON_CHARS_MAX = 2_000


class DeadLetters:
    """Writes dead letters in the name of one process, at most so many a minute.

    The limit keeps a flood of bad records from filling the disk; whoever bills must not go past a
    record that was not buried, others may.
    """

    def __init__(self, writer: LogWriter, clock: Clock, source: str) -> None:
        self._writer = writer
        self._clock = clock
        self._source = source
        self._minute = 0
        self._buried_in_minute = 0

    async def bury(self, record: LogRecord, reason: str) -> bool:
        """Append the record with its place and reason; return False, writing nothing, over the
        limit.

        Values longer than `limits.DEAD_LETTER_VALUE_BYTES_MAX` are cut: topic, partition and
        offset name the whole. Raises SendRefused, SendUnknown (bury again; a second copy is
        harmless).
        """
        minute = self._clock.now_ms() // _MINUTE_MS
        if minute != self._minute:
            self._minute, self._buried_in_minute = minute, 0
        if self._buried_in_minute >= limits.DEAD_LETTERS_PER_MINUTE_MAX:
            return False
        self._buried_in_minute += 1
        letter = DeadLetter(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            source=self._source,
            reason=reason[:_REASON_CHARS_MAX],
            value=record.value[: limits.DEAD_LETTER_VALUE_BYTES_MAX],
        )
        await self._writer.send(topics.DEAD_LETTERS, 0, encode(letter), key=self._source.encode())
        return True
