"""Each distinct record is decoded once in a run, and each distinct report or usage encoded once.

However many processes read or write it: events are frozen, so that sharing them shows nobody
anything new. The product's codec runs on every distinct one all the same; only repetitions are
saved.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from engine_workers import lanes, tail, usage_sender
from gateway import reader, rereading
from infra import fleet
from schemas import codec
from streams.metering import sink
from tests.sim import checks, verdict
from tests.sim.swaps import swapped

_DECODERS = (lanes, tail, reader, rereading, fleet, sink, checks, verdict)
_ENCODERS = (tail, usage_sender, fleet, checks)
"""Those that encode what many others encode as well."""


@contextmanager
def coded_once() -> Iterator[None]:
    """Remember what was decoded and encoded until the block ends."""
    decoded: dict[tuple[bytes, type], Any] = {}
    encoded: dict[object, bytes] = {}

    def decode(value: bytes, kind: type) -> Any:
        key = (value, kind)
        event = decoded.get(key)
        if event is None:
            event = decoded[key] = codec.decode(value, kind)
        return event

    def encode(event: object) -> bytes:
        value = encoded.get(event)
        if value is None:
            value = encoded[event] = codec.encode(event)
        return value

    with ExitStack() as stack:
        for module in _DECODERS:
            stack.enter_context(swapped(module, decode=decode))
        for module in _ENCODERS:
            stack.enter_context(swapped(module, encode=encode))
        yield
