"""How many bytes tokens take on the log, at most, so that a whole reply fits one event.

Owns the arithmetic. A terminal repeats all tokens of a reply, and a delta that carries it may hold
all of them once more; a request whose reply could be larger is refused before work starts. Pure.
"""

from collections.abc import Sequence

from schemas import limits
from schemas.replies import Delta, TokenLogprob

__all__ = ["fits_an_event", "size_of"]

_ID_BYTES = 5  # of Avro's zigzag, for ids below 2**34
_LOGPROB_BYTES = 10  # a double and the ends of an array
_TOP_LOGPROB_BYTES = 8 + _ID_BYTES

assert limits.REPLY_TOKENS_MAX * _ID_BYTES < limits.REPLY_BYTES_MAX


def fits_an_event(*, choices: int, max_tokens: int, logprobs: int | None) -> bool:
    """Tell whether every reply to such a request fits `limits.REPLY_BYTES_MAX`."""
    token_bytes = _ID_BYTES
    if logprobs is not None:
        token_bytes += _LOGPROB_BYTES + logprobs * _TOP_LOGPROB_BYTES
    return choices * max_tokens * token_bytes <= limits.REPLY_BYTES_MAX


def size_of(delta: Delta) -> int:
    """Return the bytes of a delta's tokens and of the terminal that it may carry, at most."""
    size = _tokens_bytes(delta.token_ids, delta.logprobs)
    if delta.terminal is not None:
        size += sum(_tokens_bytes(part.token_ids, part.logprobs) for part in delta.terminal.tokens)
    return size


def _tokens_bytes(token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] | None) -> int:
    size = len(token_ids) * _ID_BYTES
    if logprobs:
        size += sum(_LOGPROB_BYTES + len(each.top) * _TOP_LOGPROB_BYTES for each in logprobs)
    return size
