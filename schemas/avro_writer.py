"""A writer of Avro's binary form, compiled once from a schema, straight from event objects.

Owns speed on the hot path and nothing else: its bytes equal fastavro's (a property test holds them
together), which spends most of its time on finding the branch of each union. Knows what our schemas
use: records, arrays, optional values (`["null", X]`) and primitives. Called by `schemas.codec`.

Source: Avro 1.12 specification, "Binary encoding".
"""

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import count
from typing import Any

__all__ = ["compile_writer"]

Write = Callable[[Any], bytes]
"""From a value to its bytes; those of numbers run in C alone."""

_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
_CACHED_CHARS_MAX = 64
_LONGS_AT_ONCE = 16_384
_DOUBLE = struct.Struct("<d")


def compile_writer(schema: Mapping[str, Any]) -> Write:
    """Return a function from an event to its bytes.

    The function raises ValueError where a value does not fit the schema.
    """
    write = _compile(schema, {})

    def encode(event: object) -> bytes:
        try:
            return write(event)
        except (TypeError, AttributeError, struct.error) as error:
            raise ValueError(f"{type(event).__name__} does not fit its schema: {error}") from error

    return encode


def _compile(schema: Any, records: dict[str, Any]) -> Write:
    """Return the writer of a type; `records` holds the named ones met before."""
    source = _Source(records)
    pieces = ", ".join(source.pieces(schema, "value"))
    text = f"def write(value):\n return join(({pieces},))"
    names: dict[str, Any] = {**_NAMES, **source.items}
    # Of the schema only names of fields come in.
    exec(compile(text, "<avro writer>", "exec"), names)  # our own text
    write: Write = names["write"]
    return write


class _Source:
    """Expressions of bytes, one type after the other.

    None of them enters a function of Python's for a number or a short text: that would cost more
    than the work itself.
    """

    def __init__(self, records: dict[str, Any]) -> None:
        self.items: dict[str, Write] = {}
        """Writers of arrays' items, by their names in the source."""
        self._records = records
        self._numbers = count()

    def pieces(self, schema: Any, value: str) -> list[str]:
        """Return what writes a value of this type: expressions in the order of its bytes.

        Args: `value` is an expression; the first of those returned evaluates it, once.
        """
        if isinstance(schema, list):
            return [self._optional(schema, value)]
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, str) and kind in self._records:
            return self._record(self._records[kind], value)
        held = self._new()
        match kind:
            case "record":
                self._records[schema["name"]] = schema
                return self._record(schema, value)
            case "array" if schema["items"] in ("long", "int"):
                return [f"longs({value})"]
            case "array":
                item = self._new()
                self.items[item] = _compile(schema["items"], self._records)
                many = f"join([long(len({held})), *map({item}, {held}), none])"
                return [f"({many} if ({held} := {value}) else none)"]
            case "int" | "long":
                return [f"long({value})"]
            case "boolean":
                return [f"(yes if ({held} := {value}) is True else no({held}))"]
            case "string":
                short = f"len({held} := {value}) <= {_CACHED_CHARS_MAX}"
                return [f"(short({held}) if {short} else string({held}))"]
            case "double" | "bytes":
                return [f"{kind}_({value})"]
            case dict() | list():
                return self.pieces(kind, value)
            case _:
                raise TypeError(f"no schema of ours has {kind!r}")

    def _optional(self, branches: list[Any], value: str) -> str:
        assert len(branches) == 2 and branches[0] == "null", "the only unions of our schemas"
        held = self._new()
        pieces = ", ".join(self.pieces(branches[1], held))
        return f"(none if ({held} := {value}) is None else join((some, {pieces})))"

    def _record(self, schema: Any, value: str) -> list[str]:
        held, pieces = self._new(), list[str]()
        for field in schema["fields"]:
            whole = held if pieces else f"({held} := {value})"
            pieces += self.pieces(field["type"], f"{whole}.{field['name']}")
        return pieces

    def _new(self) -> str:
        return f"v{next(self._numbers)}"


def _longs(values: Any) -> bytes:
    if not values:
        return b"\x00"
    starts = range(0, len(values), _LONGS_AT_ONCE)
    # Piece by piece: within one call of C no other thread gets its turn.
    parts = [b"".join(map(long_bytes, values[at : at + _LONGS_AT_ONCE])) for at in starts]
    return b"".join([long_bytes(len(values)), *parts, b"\x00"])


def _false(value: Any) -> bytes:
    if value is not False:
        raise TypeError(f"{value!r} is no boolean")
    return b"\x00"


def _bytes(value: Any) -> bytes:
    return _bytes_of(bytes(value))


def _bytes_of(raw: bytes) -> bytes:
    return long_bytes(len(raw)) + raw


def string_bytes(value: str) -> bytes:
    """Return a string: its length in bytes, then they."""
    # Ids and names come again with every record; long texts do not.
    return _short_string(value) if len(value) <= _CACHED_CHARS_MAX else _bytes_of(value.encode())


@lru_cache(maxsize=1 << 13)
def _short_string(value: str) -> bytes:
    return _bytes_of(value.encode())


@lru_cache(maxsize=1 << 16)
def long_bytes(value: int) -> bytes:
    """Return a long: zigzag, then seven bits a byte, lowest first."""
    if not _LONG_MIN <= value <= _LONG_MAX:
        raise TypeError(f"{value} does not fit 64 bits")
    left = value << 1 if value >= 0 else (-value << 1) - 1
    groups = bytearray()
    while left > 0x7F:
        groups.append(left & 0x7F | 0x80)
        left >>= 7
    groups.append(left)
    return bytes(groups)


_NAMES: Mapping[str, object] = {
    "join": b"".join,
    "long": long_bytes,
    "longs": _longs,
    "short": _short_string,
    "string": string_bytes,
    "double_": _DOUBLE.pack,
    "bytes_": _bytes,
    "yes": b"\x01",
    "no": _false,
    "none": b"\x00",
    "some": b"\x02",
}
"""What the compiled text calls."""
