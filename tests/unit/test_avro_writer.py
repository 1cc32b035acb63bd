"""The compiled Avro writer and reader against fastavro's, which know nothing of them."""

import io
import random
from enum import Enum
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import fastavro
import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import fields, replace

from schemas.codec import SUBJECTS, Undecodable, decode, encode, released
from schemas.replies import Entry, ReplyRecord, entry_of
from tests.builders import delta, request, start

EVENTS = 100
TEXTS = ("", "a", "id-1", "é\u2028\x00", "long " * 30)


def any_value(kind: Any, rng: random.Random) -> Any:
    """Return a random value of any annotation that stands in an event."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        hints = get_type_hints(kind)
        return kind(**{item.name: any_value(hints[item.name], rng) for item in fields(kind)})
    if get_origin(kind) is UnionType:
        branches = [branch for branch in get_args(kind) if branch is not NoneType]
        return None if rng.random() < 0.5 else any_value(rng.choice(branches), rng)
    if get_origin(kind) is tuple:
        return tuple(any_value(get_args(kind)[0], rng) for _ in range(rng.randrange(4)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return rng.choice(list(kind))
    if hasattr(kind, "__supertype__"):
        return any_value(kind.__supertype__, rng)
    if kind is int:
        return rng.choice((0, -1, 2**63 - 1, -(2**63), rng.getrandbits(rng.randrange(1, 60))))
    if kind is bool:
        return rng.random() < 0.5
    if kind is bytes:
        return rng.randbytes(rng.randrange(5))
    return rng.random() if kind is float else rng.choice(TEXTS)


@pytest.mark.parametrize("kind", list(SUBJECTS), ids=lambda kind: str(kind.__name__))
def test_bytes_equal_those_of_fastavro(kind: type) -> None:
    """Any event of any kind is written to the very bytes that fastavro writes, and read back."""
    schema = released()[SUBJECTS[kind]][-1]
    rng = random.Random(7)
    for _ in range(EVENTS):
        event = any_value(kind, rng)
        buffer = io.BytesIO()
        datum = _lists(msgspec.to_builtins(event, builtin_types=(bytes,)))
        fastavro.schemaless_writer(buffer, schema.parsed, datum)
        assert encode(event)[10:] == buffer.getvalue()
        assert decode(encode(event), kind) == event
        assert schema.read(buffer.getvalue(), 0) == (datum, len(buffer.getvalue()))


def test_a_reply_record_is_written_and_read_as_by_fastavro() -> None:
    """Plain deltas beside entries of every kind, in any order, make no difference."""
    schema = released()["reply_record"][-1]
    rng = random.Random(3)
    for _ in range(EVENTS):
        uuid = "00000000-0000-4000-8000-000000000002"
        plain = (
            entry_of(delta(rng.getrandbits(30), *rng.sample(range(99_999), size), attempt=uuid))
            for size in (0, 1, 1, 1, 2)
        )
        entries = [*plain, *(any_value(Entry, rng) for _ in range(3))]
        rng.shuffle(entries)
        record = ReplyRecord(entries=tuple(entries))
        value, buffer = encode(record), io.BytesIO()
        written = _lists(msgspec.to_builtins(record, builtin_types=(bytes,)))
        fastavro.schemaless_writer(buffer, schema.parsed, written)
        assert value[10:] == buffer.getvalue()
        datum = fastavro.schemaless_reader(io.BytesIO(value[10:]), schema.parsed, None)
        assert decode(value, ReplyRecord) == msgspec.convert(datum, ReplyRecord)


def test_a_reply_record_cut_anywhere_is_refused() -> None:
    """No prefix of a record is read as a record, nor one with bytes after it."""
    value = encode(ReplyRecord(entries=(entry_of(delta(70, 7, 300)), entry_of(start()))))
    for size in range(len(value)):
        with pytest.raises(Undecodable):
            decode(value[:size], ReplyRecord)
    with pytest.raises(Undecodable):
        decode(value + b"\x00", ReplyRecord)


def _lists(value: Any) -> Any:
    """Return a value with lists for tuples: fastavro takes only those inside a union."""
    if isinstance(value, dict):
        return {name: _lists(item) for name, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("wrong", [None, "1", 2**63])
def test_values_that_do_not_fit_are_refused(wrong: Any) -> None:
    """A value of another type or beyond 64 bits raises ValueError, as it did with fastavro."""
    with pytest.raises(ValueError, match="does not fit"):
        encode(replace(request(), seed=wrong))
