"""A writer of `ReplyRecord` bodies for the hot path: plain deltas by hand, all else by the codec.

The other side of `reply_reader.py`: nearly every entry of a step is a delta with a token or a few,
and nothing else. The bytes are those of the compiled writer; a test compares them. Owns no rule of
the format. Called by `schemas.codec`.

Source: Avro 1.12 specification, "Binary encoding"; field order of `avro/reply_record.v1.avsc`.
"""

from collections.abc import Callable

from schemas.avro_writer import long_bytes, string_bytes
from schemas.replies import Delta, Entry, ReplyRecord

__all__ = ["WriteEntry", "write_reply_record"]

WriteEntry = Callable[[Entry], bytes]
"""From any entry to its bytes. Raises TypeError, ValueError."""

_TOKENS_MAX = 64
"""Longer deltas are rare; their writer lets other threads have their turn in between."""


def write_reply_record(record: ReplyRecord, write_entry: WriteEntry) -> bytes:
    """Return the record's body. Raises what `write_entry` raises, for ids as for all else."""
    if not record.entries:
        return b"\x00"
    pieces = [long_bytes(len(record.entries))]
    for entry in record.entries:
        delta = entry.delta
        if delta is not None and entry.start is None and entry.closed is None and _is_plain(delta):
            pieces.append(_plain(delta))
        else:
            pieces.append(write_entry(entry))
    pieces.append(b"\x00")
    return b"".join(pieces)


def _is_plain(delta: Delta) -> bool:
    return (
        delta.terminal is None
        and delta.stop is None
        and delta.logprobs is None
        and delta.ends_segment is False
        and 0 < len(delta.token_ids) <= _TOKENS_MAX
    )


def _plain(delta: Delta) -> bytes:
    """Return an entry of no start, this delta, and no close."""
    cached = delta.cached_tokens
    return b"\x00\x02%b%b%b%b%b%b%b\x00%b\x00\x00\x00\x00\x00" % (
        string_bytes(delta.request_id),
        string_bytes(delta.attempt),
        long_bytes(delta.segment),
        long_bytes(delta.choice),
        long_bytes(delta.first_index),
        long_bytes(len(delta.token_ids)),
        b"".join(map(long_bytes, delta.token_ids)),
        b"\x00" if cached is None else b"\x02" + long_bytes(cached),
    )
