"""The prefix cache of the scripted engine: which blocks of tokens were prefilled before.

Owns block hashes and their eviction, oldest first. Does not own tokens. Called by
`scripted_engine`.
"""

from collections.abc import Sequence

from engine_workers.engine.script import EMPTY_PREFIX, prefix_hash


class PrefixCache:
    """Hashes of prefixes that end with a full block, by the salt of who may find them."""

    __slots__ = ("_block_tokens", "_blocks", "_blocks_max")

    def __init__(self, *, block_tokens: int, blocks_max: int) -> None:
        self._block_tokens = block_tokens
        self._blocks_max = blocks_max
        self._blocks: dict[tuple[str | None, int], None] = {}  # oldest first

    def look_up(self, token_ids: Sequence[int], salt: str | None) -> int:
        """Return how many leading tokens are cached under this salt; the last one always has to be
        computed."""
        size, state, cached = self._block_tokens, EMPTY_PREFIX, 0
        while cached + size < len(token_ids):
            state = prefix_hash(token_ids[cached : cached + size], state)
            if (salt, state) not in self._blocks:
                break
            cached += size
        return cached

    def remember(self, token_ids: Sequence[int], salt: str | None) -> int:
        """Put the full blocks in, evict what is too much; return the hash of all tokens, which
        does not depend on the salt."""
        size, state = self._block_tokens, EMPTY_PREFIX
        full = len(token_ids) - len(token_ids) % size
        for first in range(0, full, size):
            state = prefix_hash(token_ids[first : first + size], state)
            self._blocks.pop((salt, state), None)  # newest last
            self._blocks[salt, state] = None
        while len(self._blocks) > self._blocks_max:
            del self._blocks[next(iter(self._blocks))]
        return prefix_hash(token_ids[full:], state)
