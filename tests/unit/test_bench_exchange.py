"""The load client's reading of HTTP: however the bytes are cut, the same is counted."""

import asyncio
from typing import cast

import pytest

from infra.bench.exchange import Connection, Exchange

STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b'20\r\ndata: {"delta":{"content":""}}\n\n\r\n'
    b'22\r\nid: 1-1\ndata: {"content":"ab"}\n\n\r\n'
    b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
)
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\r\nbody"
REFUSED = b"HTTP/1.1 529 Overloaded\r\ncontent-length: 2\r\n\r\n{}"


class Wire:
    """Takes what is written."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        """Keep the bytes."""
        self.written += data

    def is_closing(self) -> bool:
        """Stay open."""
        return False


def exchanged(parts: list[bytes]) -> tuple[Exchange, bool]:
    """Return the exchange after these parts of a response, and whether it was told to end."""

    async def run() -> tuple[Exchange, bool]:
        connection, exchange, ends = Connection(), Exchange(0.0), list[Exchange]()
        connection.connection_made(cast(asyncio.Transport, Wire()))
        connection.ask(b"GET / HTTP/1.1\r\n\r\n", exchange, ends.append)
        for part in parts:
            connection.data_received(part)
        return exchange, ends == [exchange]

    return asyncio.run(run())


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, len(STREAM)])
def test_a_stream_cut_anywhere(size: int) -> None:
    """Three events, a first text, and one end are found whatever the reads' size."""
    parts = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    exchange, ended = exchanged(parts)
    assert ended and exchange.failure is None and exchange.status == 200
    assert sum(count for _, count in exchange.arrivals) == 3
    assert exchange.first_s is not None


def test_the_first_text_is_not_the_empty_one() -> None:
    """An event that only opens the reply is no first token."""
    exchange, _ = exchanged([STREAM[: STREAM.index(b"22\r\n")]])
    assert exchange.first_s is None


@pytest.mark.parametrize("size", [1, 5, len(WHOLE)])
def test_a_whole_body(size: int) -> None:
    """A body of known length ends with its last byte."""
    parts = [WHOLE[start : start + size] for start in range(0, len(WHOLE), size)]
    exchange, ended = exchanged(parts)
    assert ended and exchange.size == 4 and exchange.failure is None
    assert not exchanged(parts[:-1])[1]


def test_a_refusal_is_a_failure() -> None:
    """Any status but 200 counts as a failure of that name."""
    exchange, ended = exchanged([REFUSED])
    assert ended and exchange.failure == "status 529"


def test_a_comment_is_an_arrival_without_events() -> None:
    """What keeps a stream alive counts as a sign of life, not as an event."""
    head = STREAM.partition(b"20\r\n")[0]
    exchange, ended = exchanged([head + b"c\r\n: keepalive\n\r\n", b"c\r\n: keepalive\n\r\n"])
    assert not ended
    assert [count for _, count in exchange.arrivals] == [0, 0]
