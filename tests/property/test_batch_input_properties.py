"""What clients send to make batches and files: any bytes, cut anywhere."""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message

from gateway.batches.inspection import Inspection
from gateway.batches.uploads import Upload, read_upload
from schemas.dialects.anthropic_batches import read_batch
from schemas.dialects.canonical import InvalidRequest

BOUNDARY = "xYz"
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
ITEMS = st.dictionaries(st.sampled_from(("custom_id", "params", "x")), VALUES)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z]{1,8}", fullmatch=True),
            st.dictionaries(st.text(max_size=4), VALUES, max_size=3),
        ),
        min_size=1,
        max_size=5,
        unique_by=lambda item: item[0],
    ),
    st.sampled_from((None, 2)),
)
def test_good_batches_become_lines_that_say_the_same(
    items: list[tuple[str, dict[str, object]]], indent: int | None
) -> None:
    """Whatever the white space, each item is one line of JSON that is equal to it."""
    requests = [{"custom_id": name, "params": params} for name, params in items]
    lines = read_batch(json.dumps({"requests": requests}, indent=indent).encode())
    assert all(b"\n" not in line for line in lines)
    assert [json.loads(line) for line in lines] == requests


@given(
    st.binary(max_size=64)
    | VALUES.map(lambda value: json.dumps(value).encode())
    | st.lists(ITEMS).map(lambda items: json.dumps({"requests": items}).encode())
)
def test_other_bodies_are_refused_or_read(body: bytes) -> None:
    """Nothing but a refusal is raised, and a line of a file never stops its inspection."""
    with contextlib.suppress(InvalidRequest):
        assert read_batch(body)
    inspection = Inspection("/v1/completions")
    inspection.take(1, body)
    inspection.end()
    assert inspection.item_count == 1


def form(data: bytes, purpose: str) -> bytes:
    """Return a form as clients write it."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="'
    return (
        (
            f'{head}purpose"\r\n\r\n{purpose}\r\n{head}file"; filename="a.jsonl"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        + data
        + f"\r\n--{BOUNDARY}--\r\n".encode()
    )


def read(pieces: Sequence[bytes]) -> tuple[Upload, bytes]:
    """Read a form that comes in pieces."""
    taken, waiting = bytearray(), list(pieces)

    async def receive() -> Message:
        piece = waiting.pop(0) if waiting else b""
        return {"type": "http.request", "body": piece, "more_body": bool(waiting)}

    async def take(data: bytes) -> None:
        taken.extend(data)

    headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    return asyncio.run(read_upload(headers, receive, take)), bytes(taken)


@given(
    st.binary(max_size=40) | st.sampled_from((b"\r\n--xY", b"--xYz", b"\r", b"\r\n--xYz-")),
    st.lists(st.integers(0, 300), max_size=6),
)
def test_a_form_says_the_same_however_it_is_cut(data: bytes, cuts: list[int]) -> None:
    """A file's bytes may look like the boundary's beginning; fields and name are kept."""
    if f"\r\n--{BOUNDARY}".encode() in data:
        return  # no client uses a boundary that stands in its data
    whole = form(data, "batch")
    places = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    pieces = [whole[low:high] for low, high in pairwise(places)]
    upload, taken = read(pieces)
    assert taken == data and upload.size_bytes == len(data)
    assert upload.fields == {"purpose": "batch"} and upload.filename == "a.jsonl"


@given(st.binary(max_size=80), st.integers(0, 200))
def test_a_broken_form_is_refused(noise: bytes, keep: int) -> None:
    """A form that breaks off, or is none, raises nothing but a refusal."""
    whole = form(b"{}", "batch")
    for body in (noise, whole[:keep] + noise):
        try:
            upload, _ = read([body])
        except InvalidRequest:
            continue
        assert upload.filename is not None
