"""Choosing a lane: rendezvous hashing of a prompt's first two blocks.

Owns one decision, pure: equal beginnings go to the same lane at every gateway without talking, and
a lane that drains moves only its own prompts. Called by `submission.py`.

Who asks is no part of the hash, though a prefix is cached for one workspace alone: what two
tenants begin alike may meet on a lane, where neither finds what the other put into the cache.
"""

import hashlib
from array import array
from collections.abc import Collection, Sequence
from functools import lru_cache

from schemas import limits
from schemas.operations import ProcessReported, ProcessState

__all__ = ["lane_of", "open_lanes"]

_HEADS_KEPT = 1_024
"""Services begin all their prompts alike: those beginnings are not hashed again."""


def lane_of(prompt_token_ids: Sequence[int], lanes: Collection[int]) -> int:
    """Return the lane with the highest 64-bit score for the prompt's beginning.

    Two blocks, never the first alone: all requests of a service tend to share that one. A shorter
    prompt is hashed by what it has. BLAKE2b, because Python's own hash differs between processes.
    """
    assert lanes, "a pool has lanes"
    head = array("q", prompt_token_ids[: limits.ROUTING_BLOCKS * limits.ROUTING_BLOCK_TOKENS])
    return _lane_of(head.tobytes(), tuple(lanes))


def open_lanes(workers: Collection[ProcessReported], lanes: int = limits.LANES) -> tuple[int, ...]:
    """Return the lanes that take new requests: all but those of draining workers (rule 6.10).

    Empty where no live worker serves. A lane nobody reports is open: its next owner will have it.
    """
    states = {worker.state for worker in workers}
    if ProcessState.SERVING not in states:
        return ()
    if ProcessState.DRAINING not in states:
        return tuple(range(lanes))
    draining = {
        lane for worker in workers if worker.state is ProcessState.DRAINING for lane in worker.lanes
    }
    serving = {
        lane for worker in workers if worker.state is ProcessState.SERVING for lane in worker.lanes
    }
    left = tuple(lane for lane in range(lanes) if lane not in draining - serving)
    return left or tuple(range(lanes))


@lru_cache(maxsize=_HEADS_KEPT)
def _lane_of(head: bytes, lanes: tuple[int, ...]) -> int:
    prefix = hashlib.blake2b(head, digest_size=8).digest()
    return max((_score(prefix, lane), lane) for lane in lanes)[1]


def _score(prefix: bytes, lane: int) -> bytes:
    """Return a lane's score, big-endian: bytes compare as the numbers that they are."""
    return hashlib.blake2b(prefix + lane.to_bytes(4, "big"), digest_size=8).digest()
