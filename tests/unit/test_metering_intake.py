"""What the sink takes and what it may commit: pure decisions."""

import pytest

from infra.ports import LogRecord, TopicPartition
from schemas import limits
from schemas.codec import encode
from streams.metering.intake import Intake, Verdict, commit_pause_s
from tests.contract.store_suite import ACCEPTED_AT_MS, usage_row

PLACE = TopicPartition("usage.v1", 1)


def _record(offset: int) -> LogRecord:
    value = encode(usage_row(offset).usage)
    return LogRecord(PLACE.topic, PLACE.partition, offset, ACCEPTED_AT_MS, b"acme", value)


def _taken(*offsets: int) -> Intake:
    intake = Intake()
    for offset in offsets:
        intake.take(_record(offset), usage_row(offset, offset=offset), now_s=1.0)
    return intake


def test_nothing_is_committable_before_it_is_stored() -> None:
    """Rows that wait for the store hold the commit back; stored ones free it."""
    intake = _taken(0, 1, 2)
    assert intake.committable() == {}
    intake.note_stored()
    assert intake.committable() == {PLACE: 3}
    intake.committed.update(intake.committable())
    assert intake.committable() == {}


def test_each_touched_hour_is_dirty_once() -> None:
    """Rows of the same org and hour ask for one recomputation, others for their own."""
    intake = _taken(0, 1)
    later = usage_row(2, accepted_at_ms=ACCEPTED_AT_MS + 3_600_000)
    intake.take(_record(2), later, now_s=1.0)
    intake.take(_record(3), usage_row(3, org="other"), now_s=1.0)
    intake.note_stored()
    assert len(intake.dirty) == 3


def test_a_batch_is_due_when_it_lingered_or_is_full() -> None:
    """Rows linger to gather company, but a full batch goes at once."""
    intake = Intake()
    assert intake.insert_due_s() is None
    intake.take(_record(0), usage_row(0), now_s=5.0)
    assert intake.insert_due_s() == 5.0 + limits.METERING_LINGER_MS / 1_000
    for offset in range(1, limits.METERING_BATCH_ROWS_MAX):
        intake.take(_record(0), usage_row(offset), now_s=5.1)
    assert intake.is_full
    assert intake.insert_due_s() == 5.0


@pytest.mark.parametrize(
    ("refresh_took_s", "pause_s"), [(0.0, 2.0), (0.1, 2.0), (0.2, 4.0), (0.5, 10.0), (30.0, 10.0)]
)
def test_rollups_take_a_bounded_share_of_the_time(refresh_took_s: float, pause_s: float) -> None:
    """The fuller an hour, the more a refresh costs and the rarer it is, within bounds."""
    assert commit_pause_s(refresh_took_s) == pytest.approx(pause_s)


def test_a_rebalance_goes_back_to_the_commit() -> None:
    """What was read and not committed is dropped and read again, stored or not."""
    intake = _taken(10, 11)
    intake.note_stored()
    intake.take(_record(12), usage_row(12), now_s=1.0)
    assert intake.begin(frozenset({PLACE}), {PLACE: 11}) == {PLACE: 11}
    assert intake.pending == []
    assert intake.committable() == {}
    assert intake.judge(_record(12)) is Verdict.SEEK_BACK
    assert intake.judge(_record(11)) is Verdict.TAKE


def test_without_a_commit_a_rebalance_goes_back_to_the_first_record() -> None:
    """A partition that was read and never committed starts again where its reading began."""
    intake = _taken(5, 6)
    assert intake.begin(frozenset({PLACE}), {}) == {PLACE: 5}
    unread = Intake()
    unread.note_dropped([_record(3), _record(4)])
    assert unread.begin(frozenset({PLACE}), {}) == {PLACE: 3}


def test_copies_are_skipped_and_gaps_read_again() -> None:
    """A lower offset was taken before; a higher one means lost records, until the gap proves
    real."""
    intake = _taken(0, 1)
    assert intake.judge(_record(1)) is Verdict.SKIP
    assert intake.judge(_record(2)) is Verdict.TAKE
    assert [intake.judge(_record(9)) for _ in range(3)] == [
        Verdict.SEEK_BACK,
        Verdict.SEEK_BACK,
        Verdict.TAKE,
    ]
