"""Each distinct record is decoded once in a run, however many processes read it.

Decoded events are frozen, so that sharing them shows nobody anything new. The product's codec runs
on every distinct value all the same; only repetitions are saved.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from engine_workers import lanes, tail
from gateway import reader, rereading
from infra import fleet
from schemas import codec
from schemas.operations import ProcessReported
from streams.metering import sink
from tests.sim import checks, verdict
from tests.sim.swaps import swapped

_DECODERS = (lanes, tail, reader, rereading, fleet, sink, checks, verdict)


@contextmanager
def decoded_once() -> Iterator[None]:
    """Remember what was decoded, and how a process encoded its report, until the block ends."""
    decoded: dict[tuple[bytes, type], Any] = {}
    reports: dict[ProcessReported, bytes] = {}

    def decode(value: bytes, kind: type) -> Any:
        key = (value, kind)
        event = decoded.get(key)
        if event is None:
            event = decoded[key] = codec.decode(value, kind)
        return event

    def encode(report: ProcessReported) -> bytes:
        value = reports.get(report)
        if value is None:
            value = reports[report] = codec.encode(report)
        return value

    with ExitStack() as stack:
        for module in _DECODERS:
            stack.enter_context(swapped(module, decode=decode))
        stack.enter_context(swapped(fleet, encode=encode))
        yield
