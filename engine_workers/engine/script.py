"""Which token a scripted run makes next, as a checkable function of its prefix.

Owns the hash, rolled on by one token a step, and the draw from it. A checker that holds the
accepted tokens of a reply recomputes every one, so a token that was generated on any other prefix
(or, in the simulator, by another attempt) shows at once. Pure; called by `scripted_engine` and by
the simulator's checkers.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

_MASK = (1 << 64) - 1
_ABSORB = (
    0x9E3779B97F4A7C15  # odd, from the golden ratio: spreads every bit of a token over the hash
)
_DRAW = 0xD6E8FEB86659FD93  # multiplier of the rrmxmx mixer
EMPTY_PREFIX = 0x243F6A8885A308D3  # first fractional bits of pi


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What decides tokens and ends; checkers need the same one."""

    vocab_size: int
    eos_id: int
    lowest_token_id: int = 0
    """Ids below are never made (special tokens stand there)."""
    end_one_in: int = 64
    """Chance per token that a run ends by itself, 1 in n; 0 = only by max_tokens or stop string."""
    attempt_in_hash: bool = False
    """True in the simulator: two attempts make different tokens, so that a mixture shows."""


def prefix_hash(token_ids: Iterable[int], state: int = EMPTY_PREFIX) -> int:
    """Return the hash of a prefix; `state` is the hash of what stands before `token_ids`."""
    for token_id in token_ids:
        state = ((state ^ token_id) * _ABSORB + 1) & _MASK
        state ^= state >> 29
    return state


def run_salt(script: Script, seed: int, run_id: str) -> int:
    """Return what a run mixes into every draw: its seed and, if the script says so, its attempt.

    The attempt is what stands before a "/" in the run's id: a second run of it goes on alike.
    """
    text = f"{seed}/{run_id.partition('/')[0]}" if script.attempt_in_hash else f"{seed}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def expected_token(script: Script, salt: int, prefix: int, *, may_end: bool) -> int:
    """Return the token that follows a prefix; the eos id where the run ends there.

    Args:
        salt: `run_salt` of the run.
        prefix: `prefix_hash` of prompt and all output before this token.
        may_end: False while fewer than min_tokens are out, or where eos is ignored.
    """
    draw = ((prefix ^ salt) * _DRAW) & _MASK
    draw ^= draw >> 32
    if may_end and script.end_one_in and (draw >> 40) % script.end_one_in == 0:
        return script.eos_id
    token_id = script.lowest_token_id + draw % (script.vocab_size - script.lowest_token_id - 1)
    # One id is left out of the range above, so that stepping over eos stays inside the vocabulary.
    return token_id + 1 if token_id >= script.eos_id >= script.lowest_token_id else token_id
