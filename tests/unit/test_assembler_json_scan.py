"""JSON as it is written: where a value ends or breaks, and what a reader makes of its beginning."""

import json

import jiter
import pytest

from schemas.assembler.json_scan import JsonScanner, completed
from schemas.limits import TOOL_ARGUMENTS_DEPTH_MAX, TOOL_ARGUMENTS_NUMBER_CHARS_MAX

VALUES = [
    "{}",
    "[]",
    ' {"a" : [ 1 , -0.5e+10, 2E3 ] , "b":{"c":null}, "":true}',
    '{"a":"\\u00e9\\n\\"\\\\/é🙂","b":[[],{}],"c":false}',
    '"text"',
    '{"a":"\\ud83d\\ude00"}',
]
# The text, and where it stops being JSON.
BROKEN = [
    ("{a", 1),
    ('{"a" 1', 5),
    ('{"a":01', 6),
    ('{"a":1.}', 7),
    ('{"a":+1', 5),
    ('{"a":tru}', 8),
    ('{"a":1,}', 7),
    ("[1,]", 3),
    ("[1}", 2),
    ('{"a":"\n', 6),
    ('{"a":"\\x', 7),
    ('{"a":"\\u12g', 10),
    ('{"a":NaN', 5),
    ("{1:2}", 1),
    ("[" * (TOOL_ARGUMENTS_DEPTH_MAX + 1), TOOL_ARGUMENTS_DEPTH_MAX),
    ("[" + "1" * (TOOL_ARGUMENTS_NUMBER_CHARS_MAX + 1), TOOL_ARGUMENTS_NUMBER_CHARS_MAX + 1),
]


def scan(text: str, piece_chars: int) -> tuple[JsonScanner, int, str]:
    """Push a text in pieces; return the scanner, how much it took and what it wrote."""
    scanner, taken, written = JsonScanner(), 0, ""
    for start in range(0, len(text), piece_chars):
        taken += scanner.push(text[start : start + piece_chars])
        written += scanner.take()
    return scanner, taken, written


@pytest.mark.parametrize("text", VALUES)
def test_value_ends_with_its_last_character(text: str) -> None:
    """However it is cut, a valid value is taken whole and as it stands, and nothing after it."""
    for piece_chars in (1, 2, 3, 100):
        scanner, taken, written = scan(text + '}, "rest', piece_chars)
        assert (scanner.done, scanner.broken, taken, written) == (True, False, len(text), text)


@pytest.mark.parametrize(("text", "place"), BROKEN)
def test_value_breaks_at_the_first_wrong_character(text: str, place: int) -> None:
    """What is written of a broken value is still the beginning of a valid one."""
    for piece_chars in (1, 2, 100):
        scanner, taken, written = scan(text, piece_chars)
        assert (scanner.broken, scanner.done, taken) == (True, False, place)
        assert written + scanner.unwritten == text[:place]
        jiter.from_json(written.encode() or b"{", partial_mode=True)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ('["\\ud83d"]', '["\\ufffd"]'),
        ('["\\ud83dx"]', '["\\ufffdx"]'),
        ('["\\ud83d\\n"]', '["\\ufffd\\n"]'),
        ('["\\ude00"]', '["\\ufffd"]'),
        ('["\\ud83d\\ud83d\\ude00"]', '["\\ufffd\\ud83d\\ude00"]'),
        ('["\\ud83d\\u0041"]', '["\\ufffd\\u0041"]'),
        ('{"\\udfff":1}', '{"\\ufffd":1}'),
    ],
)
def test_half_a_surrogate_pair_is_replaced(text: str, written: str) -> None:
    """SDKs refuse half a pair, grammars do not: the value stays readable."""
    for piece_chars in (1, 4, 100):
        assert scan(text, piece_chars)[2] == written
    jiter.from_json(written.encode())


@pytest.mark.parametrize("text", VALUES[:4] + VALUES[5:])
def test_beginning_is_completed_to_what_the_sdk_reads(text: str) -> None:
    """Cut anywhere, the body holds the value that Anthropic's accumulator ends with."""
    for end in range(len(text) + 1):
        written = scan(text[:end], 3)[2] if end else ""
        expected = jiter.from_json(written.encode(), partial_mode=True) if written.strip() else {}
        assert json.loads(completed(written)) == expected


def test_long_values_take_time_linear_in_their_length() -> None:
    """A hundred thousand one-character pieces of each kind are taken in a moment."""
    scanner = JsonScanner()
    scanner.push('{"a":"')
    for _ in range(100_000):
        scanner.push("x")
    for _ in range(20_000):
        scanner.push("\\u0041")
    scanner.push('","b":[0')
    for _ in range(100_000):
        scanner.push(", 1")
    scanner.push("]}")
    assert scanner.done
    assert len(scanner.take()) == len('{"a":"","b":[0]}') + 100_000 + 120_000 + 300_000
