"""Which workers served which reply, read from the log.

Owns a reader of `replies.v1` that looks at starts alone. Called by `failover.py`.
"""

from infra.errors import LogError
from infra.kafka import KafkaReader
from infra.ports import TopicPartition
from schemas import limits
from schemas.codec import decode
from schemas.replies import ReplyRecord, Start, fact_of
from schemas.topics import REPLIES

__all__ = ["StartTail"]

_PLACES = tuple(TopicPartition(REPLIES, index) for index in range(limits.REPLY_PARTITIONS))


class StartTail:
    """Reads all starts since the last call."""

    def __init__(self, bootstrap: str) -> None:
        self._reader = KafkaReader(bootstrap, client_id="bench-starts")

    async def start(self) -> None:
        """Connect."""
        await self._reader.start()
        await self.skip()

    async def close(self) -> None:
        """Release the connection."""
        await self._reader.close()

    async def skip(self) -> None:
        """Go to the ends."""
        bounds = await self._reader.bounds(_PLACES)
        self._reader.assign({place: bounds[place].end for place in _PLACES})

    async def read(self) -> dict[str, tuple[str, ...]]:
        """Return the incarnations that started each reply, in log order. Raises LogError."""
        ends = {place: bound.end for place, bound in (await self._reader.bounds(_PLACES)).items()}
        found: dict[str, tuple[str, ...]] = {}
        idle = 0
        while any(self._reader.position(place) < end for place, end in ends.items()):
            records = await self._reader.poll(
                timeout_ms=limits.FETCH_WAIT_MS, max_records=limits.POLL_RECORDS_MAX
            )
            idle = 0 if records else idle + 1
            if idle * limits.FETCH_WAIT_MS > limits.SEND_TIMEOUT_MS:
                raise LogError("the log ends before its end")
            for record in records:
                for entry in decode(record.value, ReplyRecord).entries:
                    fact = fact_of(entry)
                    if isinstance(fact, Start):
                        before = found.get(fact.request_id, ())
                        found[fact.request_id] = (*before, fact.worker)
        return found
