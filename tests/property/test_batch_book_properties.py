"""The fold of a batch's facts: whatever comes in whatever order and number."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.batches.book import BatchBook
from schemas.batches import (
    BatchDeleted,
    BatchEnded,
    BatchFact,
    BatchValidated,
    CancelRequested,
    FileDeleted,
    record_of,
)
from tests.batch_facts import created, ended, stored

ITEMS = 4
IDS = ("msgbatch_1", "msgbatch_2")


@st.composite
def ends(draw: st.DrawFn) -> BatchEnded:
    """Return an end whose counts add up."""
    cuts = sorted(draw(st.lists(st.integers(0, ITEMS), min_size=3, max_size=3)))
    parts = [high - low for low, high in zip([0, *cuts], [*cuts, ITEMS], strict=True)]
    return ended(
        draw(st.sampled_from(IDS)),
        at_ms=draw(st.integers(2_000, 9_000)),
        succeeded=parts[0],
        errored=parts[1],
        canceled=parts[2],
        expired=parts[3],
    )


def facts() -> st.SearchStrategy[BatchFact]:
    """Return facts about two batches and a file."""
    ids, times = st.sampled_from(IDS), st.integers(1_000, 9_000)
    return st.one_of(
        st.builds(created, ids, item_count=st.sampled_from((ITEMS, None)), created_ms=times),
        st.builds(BatchValidated, batch_id=ids, item_count=st.just(ITEMS), at_ms=times),
        st.builds(CancelRequested, batch_id=ids, at_ms=times),
        ends(),
        st.builds(BatchDeleted, batch_id=ids),
        st.builds(stored, created_ms=times),
        st.builds(FileDeleted, file_id=st.sampled_from(("file-1", "file-2"))),
    )


@given(st.lists(facts(), max_size=20))
def test_any_facts_in_any_order_leave_a_sound_book(given_facts: list[BatchFact]) -> None:
    """Counts add up at all times, the first of each kind stays, and deleted is what had ended."""
    book = BatchBook()
    kept: dict[str, tuple[object, ...]] = {}
    for at_ms, fact in enumerate(given_facts):
        book.apply(record_of(fact), at_ms)
        for batch_id in IDS:
            batch = book.batch(batch_id)
            if batch is None:
                assert batch_id not in kept
                continue
            now = (batch.created, batch.validated, batch.cancel_ms, batch.ended)
            for before, after in zip(kept.get(batch_id, now), now, strict=True):
                assert before is None or before == after
            kept[batch_id] = now
            counts = batch.counts
            total = counts.succeeded + counts.errored + counts.canceled + counts.expired
            if batch.ended is None:
                assert total == 0 and counts.processing == (batch.item_count or 0)
                assert batch in book.unfinished and not batch.deleted
            else:
                assert total == ITEMS and counts.processing == 0
                assert batch not in book.unfinished
            listed = list(book.batches("acme", "default"))
            assert (batch in listed) == (not batch.deleted)


@given(st.lists(facts(), max_size=12))
def test_facts_that_come_twice_change_nothing(given_facts: list[BatchFact]) -> None:
    """A log whose records were doubled on the way adds up to the same."""
    once, twice = BatchBook(), BatchBook()
    for at_ms, fact in enumerate(given_facts):
        once.apply(record_of(fact), at_ms)
        for _ in range(2):
            twice.apply(record_of(fact), at_ms)
    for batch_id in IDS:
        assert once.batch(batch_id) == twice.batch(batch_id)
    for file_id in ("file-1", "file-2"):
        assert once.file(file_id) == twice.file(file_id)
        assert once.made_file_deleted(file_id) == twice.made_file_deleted(file_id)
