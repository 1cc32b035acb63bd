"""Log lines: one JSON object each, whatever their values are."""

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

import pytest
import structlog

from infra.config import load
from infra.logs import configure
from infra.system import SystemEntropy


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Log into memory until the test ends."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure(replace(load({}), log_format="json", process="gateway-0"), stream)
    yield stream
    structlog.configure(**before)
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_is_an_object_with_the_process_and_the_moment(stream: io.StringIO) -> None:
    """Fields come as they were given, beside who says it and when."""
    structlog.get_logger().bind().info("request", status=200, model=None, stream=False)
    line = json.loads(stream.getvalue())
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "request",
        "level": "info",
        "process": "gateway-0",
        "status": 200,
        "model": None,
        "stream": False,
    }


@pytest.mark.parametrize("value", ["\ud800", 1 << 80, float("nan"), object(), {1: ("a", b"b")}])
def test_no_value_breaks_a_line(stream: io.StringIO, value: object) -> None:
    """Lone surrogates, long numbers and objects are shown, each line stays one line."""
    structlog.get_logger().info("odd", value=value)
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert json.loads(text)["event"] == "odd"


def test_random_ids_are_versions_4_and_bits_fill_their_range() -> None:
    """UUIDs are canonical texts; bits are below their power of two and reach its upper half."""
    entropy = SystemEntropy()
    ids = {entropy.uuid() for _ in range(1_000)}
    assert len(ids) == 1_000
    assert all(str(UUID(text)) == text and UUID(text).version == 4 for text in ids)
    assert all(UUID(text).variant == "specified in RFC 4122" for text in ids)
    for count in (1, 7, 63):
        drawn = [entropy.bits(count) for _ in range(200)]
        assert 1 << (count - 1) <= max(drawn) < 1 << count
