"""Laws of arguments as they are written: every JSON reader takes what is shown of them."""

import json
from itertools import pairwise

import jiter
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.assembler.json_scan import JsonScanner, completed

BOUNDED = settings(max_examples=200, deadline=None)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
)
OBJECTS = st.dictionaries(
    st.text(max_size=3),
    st.recursive(
        LEAVES,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)
STYLES = st.sampled_from([(", ", ": "), (",", ":"), (" ,\n", " : ")])


@BOUNDED
@given(OBJECTS, STYLES, st.booleans(), st.data())
def test_any_object_is_taken_and_its_beginnings_read_as_the_sdk_reads_them(
    value: dict[str, object], separators: tuple[str, str], is_ascii: bool, data: st.DataObject
) -> None:
    """What the model writes is shown to the letter, and a cut gives what the SDK makes of it."""
    text = json.dumps(value, separators=separators, ensure_ascii=is_ascii)
    scanner = JsonScanner()
    assert scanner.push(text + "x") == len(text)
    assert scanner.done
    assert scanner.take() == text
    jiter.from_json(text.encode())
    end = data.draw(st.integers(1, len(text)))
    scanner = JsonScanner()
    scanner.push(text[:end])
    written = scanner.take()
    assert json.loads(completed(written)) == jiter.from_json(written.encode(), partial_mode=True)


@BOUNDED
@given(
    st.text(alphabet='{}[]",:\\ud8eE+-.01 tfn\n', max_size=40)
    | st.binary(max_size=30).map(lambda raw: raw.decode("latin-1")),
    st.lists(st.integers(0, 40), max_size=5),
)
def test_no_text_breaks_the_scanner_and_no_cut_changes_it(text: str, seams: list[int]) -> None:
    """Of any text, the beginning of a valid value is written, the same wherever it was cut."""
    text = "{" + text
    whole = JsonScanner()
    place = whole.push(text)
    written = whole.take()
    jiter.from_json(written.encode(), partial_mode=True)
    json.loads(completed(written))
    cut, taken = JsonScanner(), 0
    places = sorted({0, len(text), *(min(seam, len(text)) for seam in seams)})
    for first, last in pairwise(places):
        taken += cut.push(text[first:last])
    assert (taken, cut.take(), cut.done, cut.broken) == (place, written, whole.done, whole.broken)
