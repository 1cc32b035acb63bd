"""A reader of `ReplyRecord` bodies for the hot path: plain deltas by hand, all else by the codec.

Nearly every entry that a gateway or a tail reads is a delta with one token and nothing else; it is
recognized by its bytes in one match. Owns no rule of the format: whatever is not exactly such a
delta goes to the reader that the codec passes in. Called by `schemas.codec`.

Source: Avro 1.12 specification, "Binary encoding"; field order of `avro/reply_record.v1.avsc`.
"""

import re
from collections.abc import Callable
from functools import lru_cache

from schemas.avro_reader import read_long
from schemas.replies import Delta, Entry, ReplyRecord

__all__ = ["ReadEntry", "read_reply_record"]

ReadEntry = Callable[[bytes, int], tuple[Entry, int]]
"""From body and position to any entry and the position after it."""

_LONG = rb"([\x80-\xff]{0,9}[\x00-\x7f])"
_UUID = rb"\x48(.{36})"
_PLAIN_DELTA = re.compile(
    # No start, but a delta, of segment 0 and choice 0, with one token (a block of one, then the
    # end of blocks) ...
    rb"\x00\x02" + _UUID + _UUID + rb"\x00\x00" + _LONG + rb"\x02" + _LONG + rb"\x00"
    # ... with or without the cached count; no stop, terminal, logprobs or segment's end; no close.
    rb"(?:\x00|\x02" + _LONG + rb")\x00{5}",
    re.DOTALL,
)


def read_reply_record(body: bytes, position: int, read_entry: ReadEntry) -> ReplyRecord:
    """Return the record that starts at `position`.

    Raises: ValueError where the body ends early or goes on after it; whatever `read_entry` raises.
    """
    entries: list[Entry] = []
    while True:
        count, position = read_long(body, position)
        if count == 0:
            break
        if count < 0:  # a block that tells its size in bytes too
            count, (_, position) = -count, read_long(body, position)
        for _ in range(count):
            found = _PLAIN_DELTA.match(body, position)
            if found is not None:
                entries.append(_entry_of(found))
                position = found.end()
            else:
                entry, position = read_entry(body, position)
                entries.append(entry)
    if position != len(body):
        raise ValueError(f"{len(body) - position} bytes left after the record")
    return ReplyRecord(entries=tuple(entries))


def _entry_of(found: re.Match[bytes]) -> Entry:
    request_id, attempt, first_index, token_id, cached_tokens = found.groups()
    return Entry(
        delta=Delta(
            request_id=request_id.decode(),
            attempt=attempt.decode(),
            segment=0,
            choice=0,
            first_index=_number(first_index),
            token_ids=(_number(token_id),),
            cached_tokens=None if cached_tokens is None else _number(cached_tokens),
        )
    )


@lru_cache(maxsize=1 << 16)
def _number(raw: bytes) -> int:
    """Return the long that these bytes are."""
    return read_long(raw, 0)[0]
