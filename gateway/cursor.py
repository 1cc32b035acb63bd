"""Cursors: which events of a reply a client has had already. Pure.

A cursor is what stands in an event's `id:` line, `<n>-<k>`: the k-th event since the n-th accepted
token. It names the same event at every gateway, at any time. Responses number their events besides,
and OpenAI's SDK resumes by that number.
"""

import re
from typing import NamedTuple

from schemas.assembler import SseEvent
from schemas.dialects.canonical import InvalidRequest

__all__ = ["Cursor", "read_cursor", "read_sequence", "rest_of"]

_FORM = re.compile(r"(\d{1,9})-(\d{1,9})")


class Cursor(NamedTuple):
    """A place between two events; compares in the order of the stream."""

    tokens: int
    events: int


def read_cursor(value: str | None) -> Cursor | None:
    """Return the cursor of a `Last-Event-ID` header, None where there is none.

    Raises: InvalidRequest where it is none of ours.
    """
    if value is None or not value.strip():
        return None
    match = _FORM.fullmatch(value.strip())
    if match is None:
        raise InvalidRequest("last-event-id", "expected the id of an event, such as 12-1")
    return Cursor(int(match[1]), int(match[2]))


def read_sequence(value: str | None) -> int:
    """Return how many events of a response a client has that names the last by its number.

    Raises: InvalidRequest where it is no number of an event.
    """
    if value is None:
        return 0
    if not re.fullmatch(r"[0-9]{1,9}", value):
        raise InvalidRequest("starting_after", "expected the sequence_number of an event")
    return int(value) + 1


def rest_of(events: tuple[SseEvent, ...], after: Cursor | None) -> list[bytes]:
    """Return the payloads of those events that come after the cursor."""
    if after is None:
        return [event.payload for event in events]
    payloads = []
    for event in events:
        tokens, _, count = event.cursor.partition("-")
        if (int(tokens), int(count)) > after:
            payloads.append(event.payload)
    return payloads
