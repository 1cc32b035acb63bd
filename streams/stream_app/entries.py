"""Table entries as bytes: keys and values of `totals` and `seen`, and which of two values wins.

Owns the private format of the stream-app's changelogs: text keys `<partition>/<name>`, JSON values.
They are nobody else's to read, so they are no events and have no Avro schema.
"""

from typing import NamedTuple

import msgspec

from streams.stream_app.totals import OrgTotal


class Seen(NamedTuple):
    """Where a request id first stood in its partition, and when that was appended."""

    offset: int
    append_time_ms: int


_TOTAL = msgspec.json.Decoder(OrgTotal)
_SEEN = msgspec.json.Decoder(Seen)
_ENCODER = msgspec.json.Encoder()


def entry_key(partition: int, name: str) -> bytes:
    """Return the table key of an org or request id; partitions never share an entry."""
    return f"{partition}/{name}".encode()


def key_parts(key: bytes) -> tuple[int, str]:
    """Return partition and name of a table key."""
    partition, _, name = key.decode().partition("/")
    return int(partition), name


def pack_total(total: OrgTotal) -> bytes:
    """Return a total as a table value."""
    return _ENCODER.encode(total)


def unpack_total(value: bytes | None) -> OrgTotal | None:
    """Return the total that a table value holds."""
    return None if value is None else _TOTAL.decode(value)


def pack_seen(seen: Seen) -> bytes:
    """Return a `seen` entry as a table value."""
    return _ENCODER.encode(seen)


def unpack_seen(value: bytes | None) -> Seen | None:
    """Return the `seen` entry that a table value holds."""
    return None if value is None else _SEEN.decode(value)


def total_wins(held: bytes, found: bytes) -> bool:
    """Tell whether the total `found` replaces the one `held`: the higher offset wins."""
    return _TOTAL.decode(found).offset >= _TOTAL.decode(held).offset


def seen_wins(held: bytes, found: bytes) -> bool:
    """Tell whether the `seen` entry `found` replaces the one `held`: the lower offset wins."""
    return _SEEN.decode(found).offset <= _SEEN.decode(held).offset
