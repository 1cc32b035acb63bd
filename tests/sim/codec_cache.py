"""Each distinct record is encoded and decoded once in a run, or not at all.

However many processes read or write it: events are frozen, so that sharing them shows nobody
anything new. In runs with real bytes the product's codec works on every distinct record; in the
others a record's bytes are the number of its event, and the codec, which has tests of its own,
costs nothing; equal usage events, whose bytes are compared, have equal numbers.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from engine_workers import lanes, outbox, tail, usage_sender
from gateway import claim_tail, claims, closing, reader, rereading, submission
from infra import fleet
from schemas import codec
from streams.metering import sink
from tests.sim import chaos, checks, gateways, key_mutations, verdict
from tests.sim.swaps import swapped

_DECODERS = (
    *(lanes, tail, reader, rereading, claim_tail, fleet, sink),
    *(chaos, checks, gateways, key_mutations, verdict),
)
_SHARED_ENCODERS = (tail, usage_sender, checks)
"""Those that encode what many others encode as well: usage events, whose bytes are compared."""
_ENCODERS = (outbox, closing, submission, claims, gateways, fleet)


@contextmanager
def coded_once(*, real_bytes: bool) -> Iterator[None]:
    """Remember what was decoded and encoded until the block ends."""
    decoded: dict[tuple[bytes, type], Any] = {}
    encoded: dict[object, bytes] = {}
    numbers = itertools.count()

    def decode(value: bytes, kind: type) -> Any:
        key = (value, kind)
        event = decoded.get(key)
        if event is None:
            event = decoded[key] = codec.decode(value, kind)
        return event

    def number(event: object) -> bytes:
        value = b"%d" % next(numbers)
        decoded[value, type(event)] = event
        return value

    make: Callable[[object], bytes] = codec.encode if real_bytes else number

    def encode(event: object) -> bytes:
        value = encoded.get(event)
        if value is None:
            value = encoded[event] = make(event)
        return value

    with ExitStack() as stack:
        for module in _DECODERS:
            stack.enter_context(swapped(module, decode=decode))
        for module in _SHARED_ENCODERS:
            stack.enter_context(swapped(module, encode=encode))
        if not real_bytes:
            for module in _ENCODERS:
                stack.enter_context(swapped(module, encode=number))
        yield
