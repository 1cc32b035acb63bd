"""Which gateway runs a batch: rendezvous hashing over those that serve its pool.

Pure. Gateways agree without talking as long as they see the same ones live; where for a moment they
do not, two run one batch, which costs nothing: items are claimed and results counted once.
"""

import hashlib
from collections.abc import Collection

from schemas.operations import ProcessReported, ProcessState

__all__ = ["runner_of"]


def runner_of(batch_id: str, gateways: Collection[ProcessReported]) -> str | None:
    """Return the name of the process that runs a batch, or None where nobody serves.

    By name, not incarnation: a gateway that comes back goes on with what it had.
    """
    names = {gateway.process for gateway in gateways if gateway.state is ProcessState.SERVING}
    return max(names, key=lambda name: (_score(name, batch_id), name), default=None)


def _score(name: str, batch_id: str) -> bytes:
    return hashlib.blake2b(f"{name}\0{batch_id}".encode(), digest_size=8).digest()
