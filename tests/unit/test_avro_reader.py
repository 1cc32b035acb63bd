"""The compiled Avro reader where a body is none, and against fastavro's where it may be one."""

import io
import random

import fastavro
import pytest
from msgspec.structs import replace

from schemas.avro_reader import compile_reader
from schemas.codec import Undecodable, decode, encode, released
from schemas.replies import ReplyRecord, entry_of
from schemas.requests import RequestAccepted
from tests.builders import delta, request, start

LONGS = {"type": "array", "items": "long"}
EDGES = (0, 63, 64, 8_191, 8_192, 1_048_575, 1_048_576, 2**31, 2**63 - 1)


def test_numbers_of_every_length() -> None:
    """Around each edge of the encoding, of either sign."""
    numbers = [sign * edge + step for edge in EDGES for sign in (1, -1) for step in (-1, 0)]
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(LONGS), numbers)
    assert compile_reader(LONGS)(body.getvalue(), 0) == (numbers, len(body.getvalue()))


def test_blocks_that_tell_their_size() -> None:
    """A negative count is followed by the block's bytes, which nobody needs."""
    assert compile_reader(LONGS)(b"\x03\x04\x02\x04\x02\x06\x00", 0) == ([1, 2, 3], 7)


@pytest.mark.parametrize("body", [b"", b"\x80", b"\x80\x80", b"\x02", b"\x02\x80", b"\xff" * 11])
def test_longs_that_end_early_or_never(body: bytes) -> None:
    """None is read as something."""
    with pytest.raises((ValueError, IndexError)):
        compile_reader(LONGS)(body, 0)


@pytest.mark.parametrize("body", [b"\x04a", b"\x01", b"\x02\xff", b"\xfe\xff\xff\xff\x0f"])
def test_texts_that_end_early_or_are_none(body: bytes) -> None:
    """Lengths beyond the body, negative ones, and bytes that are no characters are refused."""
    with pytest.raises(ValueError, match=r"ends|codec"):
        compile_reader("string")(body, 0)


def test_a_schema_of_another_kind_is_refused() -> None:
    """What the compiler does not know it does not guess."""
    with pytest.raises(TypeError, match="map"):
        compile_reader({"type": "map", "values": "long"})


def test_a_damaged_event_is_read_as_fastavro_reads_it_or_refused() -> None:
    """One changed byte, a thousand times: the same event, or Undecodable where fastavro fails."""
    schema, rng = released()["request_accepted"][-1], random.Random(5)
    whole = encode(request())
    for _ in range(1_000):
        place, byte = rng.randrange(10, len(whole)), rng.randrange(256)
        value = whole[:place] + bytes([byte]) + whole[place + 1 :]
        try:
            event = decode(value, RequestAccepted)
        except Undecodable:
            continue
        body = io.BytesIO(value[10:])
        datum = fastavro.schemaless_reader(body, schema.parsed, None)
        assert body.tell() == len(value) - 10
        assert datum["request_id"] == event.request_id
        assert tuple(datum["prompt_token_ids"]) == event.prompt_token_ids


def test_events_of_any_size_are_read_back() -> None:
    """Long arrays take another reader, to the same end."""
    ids = tuple(range(40_000))
    asked = replace(request(), prompt_token_ids=ids)
    assert decode(encode(asked), RequestAccepted) == asked
    record = ReplyRecord(
        entries=(entry_of(delta(0, *ids)), entry_of(start()), entry_of(delta(0, 7)))
    )
    assert decode(encode(record), ReplyRecord) == record
