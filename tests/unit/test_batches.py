"""Batches' pure parts: what is forgotten, pages, lines, bodies, who runs what."""

import json

import pytest

from gateway.batches.book import BatchBook
from gateway.batches.contents import LineSplitter
from gateway.batches.inspection import Inspection
from gateway.batches.paging import Page, page_of
from gateway.batches.placement import next_of, runner_of
from schemas import limits
from schemas.batches import record_of
from schemas.dialects.anthropic_batches import read_batch, rfc3339
from schemas.dialects.canonical import InvalidRequest
from schemas.operations import ProcessReported, ProcessState
from tests.batch_facts import created, stored


def test_a_book_forgets_what_its_topic_does_not_keep() -> None:
    """Batches and files older than the facts' retention are gone, younger ones stay."""
    book = BatchBook()
    book.apply(record_of(created("msgbatch_old")), 0)
    book.apply(record_of(stored("file-old")), 1)
    book.apply(record_of(created("msgbatch_new")), limits.BATCH_FACTS_RETENTION_MS + 1)
    assert book.batch("msgbatch_old") is None and book.file("file-old") is None
    assert [batch.created.batch_id for batch in book.unfinished] == ["msgbatch_new"]


def page(query: dict[str, str], count: int = 5) -> Page[int]:
    """Return a page of the numbers 0 to 4."""
    return page_of(
        range(count), str, query, after="after_id", before="before_id", limit=2, limit_max=10
    )


def test_pages_follow_each_other_in_both_directions() -> None:
    """Going on by the last id meets each entry once; going back gives the ones just before."""
    seen: list[int] = []
    query: dict[str, str] = {}
    more = True
    while more:
        found = page(query)
        seen += found.entries
        query, more = {"after_id": str(seen[-1])}, found.has_more
    assert seen == [0, 1, 2, 3, 4]
    assert page({"before_id": "3"}) == Page(entries=(1, 2), has_more=True)
    assert page({"before_id": "2"}) == Page(entries=(0, 1), has_more=False)
    assert page({"after_id": "4"}) == Page(entries=(), has_more=False)
    assert page({}, count=0) == Page(entries=(), has_more=False)


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "11"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"after_id": "9"}, "after_id"),
        ({"after_id": "1", "before_id": "2"}, "before_id"),
    ],
)
def test_bad_pages_are_refused_by_name(query: dict[str, str], named: str) -> None:
    """A bad limit, a cursor of nothing and two cursors name their parameter."""
    with pytest.raises(InvalidRequest) as refused:
        page(query)
    assert refused.value.path == named


@pytest.mark.parametrize("cut", range(1, 9))
def test_lines_do_not_depend_on_how_bytes_were_cut(cut: int) -> None:
    """Numbers count blank lines too, a line that is too long is told, the last needs no end."""
    data = b"one\r\n\n  \ntwo-is-too-long\nthree\nend"
    splitter = LineSplitter(line_bytes_max=8)
    pieces = [data[at : at + cut] for at in range(0, len(data), cut)]
    lines = [line for piece in pieces for line in splitter.feed(piece)] + list(splitter.end())
    assert lines == [(1, b"one"), (4, None), (5, b"three"), (6, b"end")]


def test_an_anthropic_body_becomes_one_line_for_each_item() -> None:
    """White space between tokens goes, what a string holds and the numbers' digits stay."""
    body = b'{"requests": [ {"custom_id":"a", "params": {"x" :\n [1.50, "a\\n b"]}} ]}'
    assert read_batch(body) == [b'{"custom_id":"a","params":{"x":[1.50,"a\\n b"]}}']


@pytest.mark.parametrize(
    ("requests", "path", "status"),
    [
        ([], "requests", 400),
        ({}, "requests", 400),
        ([1], "requests.0", 400),
        ([{"params": {}}], "requests.0.custom_id", 400),
        ([{"custom_id": "a"}], "requests.0.params", 400),
        ([{"custom_id": "a b", "params": {}}], "requests.0.custom_id", 400),
        ([{"custom_id": "a" * 65, "params": {}}], "requests.0.custom_id", 400),
        ([{"custom_id": "a", "params": []}], "requests.0.params", 400),
        ([{"custom_id": "a", "params": {}}] * 2, "requests.1.custom_id", 400),
        ([{"custom_id": "a", "params": {}, "x": 1}], "requests.0.x", 400),
        ([0] * (limits.BATCH_ITEMS_MAX + 1), "requests", 413),
    ],
)
def test_a_bad_anthropic_batch_is_refused_by_name(requests: object, path: str, status: int) -> None:
    """What is wrong with the batch itself, not with what its items ask for, names its place."""
    with pytest.raises(InvalidRequest) as refused:
        read_batch(json.dumps({"requests": requests}).encode())
    assert (refused.value.path, refused.value.status) == (path, status)


def test_times_are_written_to_the_millisecond() -> None:
    """As RFC 3339 has them, in UTC."""
    assert rfc3339(1_700_000_000_007) == "2023-11-14T22:13:20.007Z"
    assert rfc3339(None) is None


def line(**members: object) -> bytes:
    """Return a good line of a file, but for what is given."""
    whole = {"custom_id": "a", "method": "POST", "url": "/v1/x", "body": {}} | members
    return json.dumps({name: value for name, value in whole.items() if value != ...}).encode()


@pytest.mark.parametrize(
    ("lines", "code", "number"),
    [
        ([], "empty_file", None),
        ([b"{"], "invalid_json_line", 1),
        ([b"[]"], "invalid_json_line", 1),
        ([line(), b"x"], "invalid_json_line", 2),
        ([line(custom_id=...)], "missing_required_parameter", 1),
        ([line(body=...)], "missing_required_parameter", 1),
        ([line(custom_id=7)], "invalid_custom_id", 1),
        ([line(custom_id="a\n")], "invalid_custom_id", 1),
        ([line(custom_id="\ud800")], "invalid_json_line", 1),
        ([line(), line()], "duplicate_custom_id", 2),
        ([line(method="GET")], "invalid_method", 1),
        ([line(url="/v1/y")], "mismatched_endpoint", 1),
        ([line(body=[])], "invalid_body", 1),
        ([None], "line_too_long", 1),
    ],
)
def test_a_bad_line_of_a_file_is_told_with_its_number(
    lines: list[bytes | None], code: str, number: int | None
) -> None:
    """Each fault has a code, words and the line it stands in."""
    inspection = Inspection("/v1/x")
    for place, text in enumerate(lines, 1):
        inspection.take(place, text)
    inspection.end()
    (fault,) = inspection.faults
    assert (fault.code, fault.line) == (code, number) and fault.message


def gateway(name: str, state: ProcessState = ProcessState.SERVING) -> ProcessReported:
    """Return a gateway's report."""
    return ProcessReported(process=name, incarnation=f"{name}/1", kind="gateway", state=state)


def test_a_batch_moves_only_where_its_gateway_leaves() -> None:
    """Each batch has one gateway whoever looks; without that one, only its batches move."""
    three = [gateway(f"gateway-{number}") for number in range(3)]
    ids = [f"msgbatch_{number}" for number in range(60)]
    before = {name: runner_of(name, three) for name in ids}
    assert before == {name: runner_of(name, three[::-1]) for name in ids}
    assert set(before.values()) == {report.process for report in three}
    left = [*three[:2], gateway("gateway-2", ProcessState.DRAINING)]
    after = {name: runner_of(name, left) for name in ids}
    assert all(after[name] == before[name] for name in ids if before[name] != "gateway-2")
    assert "gateway-2" not in after.values()
    assert runner_of("msgbatch_1", []) is None


def test_a_small_org_need_not_wait_for_a_large_one_s_batches() -> None:
    """The org with the fewest batches running comes next, and of its batches the oldest."""
    large = [created(f"large-{number}", org="large", created_ms=number) for number in range(3)]
    small = [created(f"small-{number}", org="small", created_ms=5 + number) for number in range(2)]
    assert next_of([*small, *large], []) == large[0]
    assert next_of([*small[::-1], *large[1:]], large[:1]) == small[0]
    assert next_of([small[1], *large[1:]], [large[0], small[0]]) == large[1]
