"""A compiler of Avro readers: from a schema to one function without any look-up in it.

Owns the binary encoding's reading side, for schemas whose writer is the very same; versions are
resolved by fastavro (`codec.py`). Every event that a process reads passes here, and a reader that
walks the schema takes twice as long as one written for it. Called by `schemas.codec`.

Source: Avro 1.12 specification, "Binary encoding".
"""

import struct
from collections.abc import Callable
from itertools import count
from typing import Any

__all__ = ["Read", "compile_reader", "read_long"]

Read = Callable[[bytes, int], tuple[Any, int]]
"""From a body and a position to a value of builtin types and the position after it.

Raises: ValueError, IndexError, UnicodeDecodeError, struct.error where the body is none.
"""


def compile_reader(schema: Any) -> Read:
    """Return the reader of a schema as JSON. Raises TypeError for what no schema of ours has."""
    source = _Source()
    source.read(schema, "value", 1)
    lines = ["def read(body, place):", " size = len(body)", *source.lines, " return value, place"]
    names: dict[str, Any] = {"long": read_long, "double": struct.Struct("<d").unpack_from}
    # Of the schema only names of fields come in, as literals.
    exec(compile("\n".join(lines), "<avro reader>", "exec"), names)  # our own text
    read: Read = names["read"]
    return read


def read_long(body: bytes, place: int) -> tuple[int, int]:
    """Return a long and the position after it. Raises ValueError where the body ends in it."""
    try:
        byte = body[place]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), place + 1
        value, shift = byte & 0x7F, 7
        while byte >= 0x80:
            place += 1
            byte = body[place]
            value |= (byte & 0x7F) << shift
            shift += 7
    except IndexError:
        raise ValueError("the body ends inside a number") from None
    if value >> 64:
        raise ValueError("a number of more than 64 bits")
    return (value >> 1) ^ -(value & 1), place + 1


class _Source:
    """Lines of a function, one type after the other."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._records: dict[str, Any] = {}
        self._numbers = count()

    def read(self, schema: Any, name: str, depth: int) -> None:
        """Add what reads a value of this type into a variable."""
        if isinstance(schema, list):
            self._optional(schema, name, depth)
            return
        kind = schema["type"] if isinstance(schema, dict) else schema
        match kind:
            case "record":
                self._records[schema["name"]] = schema
                self._record(schema, name, depth)
            case "array":
                self._array(schema["items"], name, depth)
            case "int" | "long":
                self._long(name, depth)
            case "boolean":
                self._add(depth, f"{name} = body[place] != 0", "place += 1")
            case "double":
                self._add(depth, f"({name},) = double(body, place)", "place += 8")
            case "string" | "bytes":
                self._text(name, depth, is_string=kind == "string")
            case dict() | list():
                self.read(kind, name, depth)
            case _ if kind in self._records:
                self._record(self._records[kind], name, depth)
            case _:
                raise TypeError(f"no schema of ours has {kind!r}")

    def _add(self, depth: int, *lines: str) -> None:
        self.lines.extend(" " * depth + line for line in lines)

    def _new(self) -> str:
        return f"v{next(self._numbers)}"

    def _long(self, name: str, depth: int) -> None:
        """One to three bytes here, as lengths and token ids have; longer ones by a call."""
        self._add(
            depth,
            f"{name} = body[place]",
            f"if {name} < 128:",
            f" {name} = {name} >> 1 ^ -({name} & 1)",
            " place += 1",
            "elif body[place + 1] < 128:",
            f" {name} = {name} & 127 | body[place + 1] << 7",
            f" {name} = {name} >> 1 ^ -({name} & 1)",
            " place += 2",
            "elif body[place + 2] < 128:",
            f" {name} = {name} & 127 | (body[place + 1] & 127) << 7 | body[place + 2] << 14",
            f" {name} = {name} >> 1 ^ -({name} & 1)",
            " place += 3",
            "else:",
            f" {name}, place = long(body, place)",
        )

    def _text(self, name: str, depth: int, *, is_string: bool) -> None:
        length, end = self._new(), self._new()
        self._long(length, depth)
        self._add(
            depth,
            f"{end} = place + {length}",
            f"if not place <= {end} <= size:",
            " raise ValueError('the body ends inside a text')",
            f"{name} = body[place:{end}]" + (".decode()" if is_string else ""),
            f"place = {end}",
        )

    def _optional(self, branches: list[Any], name: str, depth: int) -> None:
        assert len(branches) == 2 and branches[0] == "null", "the only unions of our schemas"
        branch = self._new()
        self._add(depth, f"{branch} = body[place]", "place += 1", f"if {branch} == 2:")
        self.read(branches[1], name, depth + 1)
        self._add(
            depth,
            f"elif {branch} == 0:",
            f" {name} = None",
            "else:",
            " raise ValueError('there is no such branch')",
        )

    def _array(self, items: Any, name: str, depth: int) -> None:
        number, item = self._new(), self._new()
        self._add(depth, f"{name} = []", "while True:")
        self._long(number, depth + 1)
        self._add(
            depth + 1,
            f"if {number} == 0:",
            " break",
            f"if {number} < 0:",  # a block that tells its size in bytes too
            f" {number}, place = -{number}, long(body, place)[1]",
            f"for _ in range({number}):",
        )
        self.read(items, item, depth + 2)
        self._add(depth + 2, f"{name}.append({item})")

    def _record(self, schema: Any, name: str, depth: int) -> None:
        pairs = []
        for field in schema["fields"]:
            variable = self._new()
            self.read(field["type"], variable, depth)
            pairs.append(f"{field['name']!r}: {variable}")
        self._add(depth, f"{name} = {{{', '.join(pairs)}}}")
