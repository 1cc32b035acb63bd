"""The control topic as a view: API keys, limits, topic incarnations, replayed from the beginning.

Owns what `control.v1` says at the offset read so far, and the tail that keeps it current. Makes no
keys (`infra/keys.py`) and appends nothing. Called by gateways, workers and the commands.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from infra.errors import LogError
from infra.ports import LogReader, LogRecord, TopicPartition
from schemas import limits
from schemas.codec import Undecodable, decode
from schemas.operations import ControlRecord, KeyCreated, LimitsSet
from schemas.quota import OrgLimits, limits_of
from schemas.topics import CONTROL

__all__ = ["Bury", "ControlTail", "ControlView"]

Bury = Callable[[LogRecord, str], Awaitable[object]]
"""Takes a record that cannot be handled and why; see `infra.dead_letters.DeadLetters.bury`."""

_PARTITION = TopicPartition(CONTROL, 0)


class ControlView:
    """State folded from the control topic; mutated by `apply` only."""

    def __init__(self) -> None:
        self._created: dict[str, KeyCreated] = {}
        self._revoked_ms: dict[str, int] = {}
        self._active: dict[str, KeyCreated] = {}
        self._incarnations: dict[str, int] = {}
        self._limits: dict[str, OrgLimits] = {}
        self._limits_set: dict[str, LimitsSet] = {}

    @property
    def keys(self) -> Mapping[str, KeyCreated]:
        """Keys that authenticate now, by the SHA-256 of their secret."""
        return self._active

    @property
    def created(self) -> Mapping[str, KeyCreated]:
        """Every key ever made, by key id, revoked ones too."""
        return self._created

    @property
    def limits(self) -> Mapping[str, OrgLimits]:
        """Limits in force by org; an org that was never limited is absent."""
        return self._limits

    def limits_set(self, org: str) -> LimitsSet | None:
        """Return the newest setting of an org's limits, or None where there was none."""
        return self._limits_set.get(org)

    def revoked_ms(self, key_id: str) -> int | None:
        """Return when a key was revoked, or None where it was not."""
        return self._revoked_ms.get(key_id)

    def incarnation(self, topic: str) -> int | None:
        """Return the number that `apply` drew when it made `topic`, or None where it did not."""
        return self._incarnations.get(topic)

    def apply(self, record: ControlRecord) -> None:
        """Take the next fact in log order; a revoked key id never authenticates again."""
        if (key := record.key_created) is not None:
            self._created[key.key_id] = key
            if key.key_id not in self._revoked_ms:
                self._active[key.secret_sha256] = key
        if (gone := record.key_revoked) is not None:
            self._revoked_ms.setdefault(gone.key_id, gone.revoked_ms)
            held = self._created.get(gone.key_id)
            if held is not None:
                self._active.pop(held.secret_sha256, None)
        if (topic := record.topic_created) is not None:
            self._incarnations[topic.topic] = topic.incarnation
        if (fact := record.limits_set) is not None:
            earlier = self._limits.get(fact.org)
            self._limits_set[fact.org] = fact
            self._limits[fact.org] = limits_of(fact, earlier.revision + 1 if earlier else 1)


class ControlTail:
    """Keeps a ControlView current from a reader of its own."""

    def __init__(self, reader: LogReader, view: ControlView, bury: Bury | None = None) -> None:
        self._reader = reader
        self._view = view
        self._bury = bury
        self._target: int | None = None
        """End of the topic when the tail first looked; None before."""
        self._next_offset = 0

    @property
    def caught_up(self) -> bool:
        """True once everything that stood in the topic at start has been applied."""
        return self._target is not None and self._next_offset >= self._target

    async def run(self) -> None:
        """Read for ever; an unreachable log is waited for, and what was read stays valid."""
        while True:
            try:
                await self.run_once()
            except LogError:
                await asyncio.sleep(limits.RETRY_PAUSE_MS / 1000)

    async def run_once(self) -> None:
        """Take what has come since the last turn. Raises LogError; the next turn goes on."""
        if self._target is None:
            bounds = (await self._reader.bounds([_PARTITION]))[_PARTITION]
            self._next_offset = max(self._next_offset, bounds.start)
            self._reader.assign({_PARTITION: self._next_offset})
            self._target = bounds.end
            if self.caught_up:
                return
        records = await self._reader.poll(
            timeout_ms=limits.FETCH_WAIT_MS, max_records=limits.POLL_RECORDS_MAX
        )
        poison = []
        for record in records:
            self._next_offset = record.offset + 1
            try:
                self._view.apply(decode(record.value, ControlRecord))
            except Undecodable as error:
                poison.append((record, str(error)))
        for record, reason in poison:
            if self._bury is not None:
                await self._bury(record, reason)

    async def read_all(self) -> ControlView:
        """Read up to the present end and return the view. Raises LogError."""
        while not self.caught_up:
            await self.run_once()
        return self._view
