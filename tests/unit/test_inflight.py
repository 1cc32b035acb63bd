"""Lane progress: only the lowest unfinished offset is ever committed."""

from hypothesis import given
from hypothesis import strategies as st

from engine_workers.inflight import LaneProgress


def test_the_lowest_unfinished_offset_is_committed() -> None:
    """Finishing later ones first moves nothing; finishing the lowest moves past all of them."""
    lane = LaneProgress(next_offset=10)
    for offset in (10, 11, 12):
        lane.take(offset)
    lane.finish(11)
    lane.finish(12)
    assert (lane.commit_offset, lane.span) == (10, 3)
    lane.finish(10)
    assert (lane.commit_offset, lane.span) == (13, 0)


def test_an_offset_taken_before_is_not_admitted_again() -> None:
    """A position that fell back brings only what is new."""
    lane = LaneProgress(next_offset=10)
    lane.take(10)
    assert not lane.admits(10)
    assert lane.admits(11)


def test_a_jump_ahead_is_refused_once_and_taken_when_the_log_insists() -> None:
    """The first jump is a moved position; the second one at the same place is a gap of the log."""
    lane = LaneProgress(next_offset=10)
    assert not lane.admits(15)
    assert lane.admits(15)


@given(st.permutations(range(12)))
def test_nothing_unfinished_is_ever_below_the_commit(order: list[int]) -> None:
    """For any order of finishing, every offset below the commit is finished."""
    lane = LaneProgress(next_offset=0)
    for offset in range(12):
        lane.take(offset)
    finished: set[int] = set()
    for offset in order:
        lane.finish(offset)
        finished.add(offset)
        assert set(range(lane.commit_offset)) <= finished
    assert lane.commit_offset == 12
