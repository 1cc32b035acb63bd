"""What the audit concludes from given replies, usage events and rows."""

import json

from msgspec.structs import replace

from infra.audit_compare import AuditReport, Kind, Metered, Stored, compare
from infra.ports import UsageRow
from tests.contract.store_suite import ACCEPTED_AT_MS, usage_row

ROWS = [usage_row(n, offset=n) for n in range(1, 5)]
IDS = [row.usage.request_id for row in ROWS]


def _audit(
    rows: list[UsageRow] | None = None,
    *,
    metered: dict[str, Metered] | None = None,
    physical_count: int | None = None,
    landed: list[str] | None = None,
    readable_from_ms: int = 0,
    disputed: tuple[str, ...] = (),
) -> AuditReport:
    rows = ROWS if rows is None else rows
    events = {
        row.usage.request_id: Metered(usage=row.usage, places=((row.partition, row.offset),))
        for row in ROWS
    }
    return compare(
        {row.usage.request_id: row.usage for row in ROWS},
        events if metered is None else {**events, **metered},
        Stored(
            rows=rows,
            physical_count=len(rows) if physical_count is None else physical_count,
            disputed=disputed,
        ),
        landed=IDS if landed is None else landed,
        readable_from_ms=readable_from_ms,
    )


def _kinds(report: AuditReport) -> list[tuple[str, Kind]]:
    return [(difference.request_id, difference.kind) for difference in report.differences]


def test_agreement_holds() -> None:
    """Equal replies, events and rows give exit code 0, with copies counted as collapsed."""
    report = _audit(physical_count=7)
    assert (report.exit_code, report.collapsed, report.rows) == (0, 3, 4)
    assert "agree" in report.render()
    assert json.loads(report.to_json())["holds"] is True


def test_a_deleted_row_is_named() -> None:
    """A row that is gone is missing, by its id."""
    report = _audit(ROWS[1:])
    assert _kinds(report) == [(IDS[0], Kind.MISSING_ROW)]
    assert report.exit_code == 1
    assert IDS[0] in report.render()


def test_a_changed_row_names_its_column() -> None:
    """A changed token count is different, with the column and both values."""
    changed = replace(ROWS[0], usage=replace(ROWS[0].usage, output_tokens=26))
    report = _audit([changed, *ROWS[1:]])
    assert _kinds(report) == [(IDS[0], Kind.DIFFERENT_ROW)]
    assert report.differences[0].details == "output_tokens: 26 instead of 25"


def test_a_changed_place_is_different() -> None:
    """A row that points to a place of the log where its event does not stand is different."""
    report = _audit([replace(ROWS[0], offset=99), *ROWS[1:]])
    assert _kinds(report) == [(IDS[0], Kind.DIFFERENT_ROW)]


def test_an_added_row_is_unknown_within_retention() -> None:
    """A row without an event is unknown, unless retention may have removed its event."""
    added = usage_row(9)
    unknown = [(added.usage.request_id, Kind.UNKNOWN_ROW)]
    assert _kinds(_audit([*ROWS, added])) == unknown
    assert _kinds(_audit([*ROWS, added], readable_from_ms=ACCEPTED_AT_MS + 1)) == []


def test_several_rows_of_one_id_are_named() -> None:
    """A second row under another key does not collapse and is named."""
    twin = replace(ROWS[0], usage=replace(ROWS[0].usage, org="other"))
    assert (IDS[0], Kind.SEVERAL_ROWS) in _kinds(_audit([*ROWS, twin]))


def test_disputed_copies_are_named_even_when_the_right_one_is_read() -> None:
    """A hand-added copy that loses the collapse is found all the same."""
    assert _kinds(_audit(disputed=(IDS[2],))) == [(IDS[2], Kind.UNEQUAL_COPIES)]


def test_usage_that_replies_do_not_bear_out_is_named() -> None:
    """Events that are missing, wrong, unequal or without a request are each named."""
    wrong = replace(ROWS[1].usage, output_tokens=1)
    report = _audit(
        [replace(ROWS[1], usage=wrong), *ROWS[2:]],
        metered={
            IDS[1]: Metered(usage=wrong, places=((1, 2),)),
            IDS[2]: Metered(usage=ROWS[2].usage, places=((1, 3), (1, 8)), equal=False),
        },
        landed=IDS[:3],
    )
    assert (IDS[1], Kind.WRONGLY_METERED) in _kinds(report)
    assert (IDS[2], Kind.UNEQUAL_EVENTS) in _kinds(report)
    assert (IDS[3], Kind.METERED_WITHOUT_REQUEST) in _kinds(report)


def test_newer_traffic_is_not_held_against_the_store() -> None:
    """An event that came after the sink's commit was looked at needs no row yet."""
    late = usage_row(9)
    event = Metered(usage=late.usage, places=((1, 7),), row_is_due=False, request_is_due=False)
    assert _audit(metered={late.usage.request_id: event}).exit_code == 0
    assert _audit([*ROWS, late], metered={late.usage.request_id: event}).exit_code == 0
