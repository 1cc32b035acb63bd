"""Server-sent events as bytes: frames, cursors, JSON.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from typing import Final, NamedTuple

import msgspec

COMMENT: Final = b": keepalive\n"
"""Without a blank line: after an event with an `id:`, OpenAI's SDK takes every blank line for the
end of another event, and fails on its empty data."""

_encoder = msgspec.json.Encoder()
# JSON may hold these raw, but some clients split lines at them as Python's str.splitlines does.
_LINE_BREAKS: Final = (
    (b"\xc2\x85", rb"\u0085"),
    (b"\xe2\x80\xa8", rb"\u2028"),
    (b"\xe2\x80\xa9", rb"\u2029"),
)


class SseEvent(NamedTuple):
    """One event of a reply. A tuple, not a dataclass: one is made for each token of each stream."""

    cursor: str
    """`<n>-<k>`: n accepted tokens over all choices so far, k-th event since that token, from 1."""
    payload: bytes
    """The complete event: `event:`, `id:` and `data:` lines and the blank line after them."""


class Frame(NamedTuple):
    """An event that waits for its cursor."""

    name: bytes
    """`event: <name>` and a line break; empty where the dialect names no events."""
    data: bytes


def sse_event(frame: Frame, tokens: int, count: int) -> SseEvent:
    """Give a frame its cursor."""
    cursor = f"{tokens}-{count}"
    return SseEvent(cursor, b"%bid: %b\ndata: %b\n\n" % (frame.name, cursor.encode(), frame.data))


def unnumbered(frame: Frame) -> bytes:
    """Return the bytes of an event that a client cannot resume from."""
    return b"%bdata: %b\n\n" % frame


def json_bytes(value: object) -> bytes:
    """Return compact JSON without any character that ends a line anywhere."""
    raw = _encoder.encode(value)
    if raw.isascii():
        return raw
    for character, escape in _LINE_BREAKS:
        if character in raw:
            raw = raw.replace(character, escape)
    return raw
