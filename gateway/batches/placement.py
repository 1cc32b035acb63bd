"""Which gateway runs a batch, and which of its batches a gateway begins next.

Pure. A batch's gateway is found by rendezvous hashing over those that serve its pool. Gateways
agree without talking as long as they see the same ones live; where for a moment they do not, two
run one batch, which costs nothing: items are claimed and results counted once.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable

from schemas.batches import BatchCreated
from schemas.operations import ProcessReported, ProcessState

__all__ = ["next_of", "runner_of"]


def runner_of(batch_id: str, gateways: Collection[ProcessReported]) -> str | None:
    """Return the name of the process that runs a batch, or None where nobody serves.

    By name, not incarnation: a gateway that comes back goes on with what it had.
    """
    names = {gateway.process for gateway in gateways if gateway.state is ProcessState.SERVING}
    return max(names, key=lambda name: (_score(name, batch_id), name), default=None)


def next_of(waiting: Iterable[BatchCreated], running: Iterable[BatchCreated]) -> BatchCreated:
    """Return the oldest batch of the org that has the fewest running."""
    counts = Counter(batch.org for batch in running)
    return min(waiting, key=lambda batch: (counts[batch.org], batch.created_ms, batch.batch_id))


def _score(name: str, batch_id: str) -> bytes:
    return hashlib.blake2b(f"{name}\0{batch_id}".encode(), digest_size=8).digest()
