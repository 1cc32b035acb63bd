"""Lanes by rendezvous hash of a prompt's first two blocks."""

from msgspec.structs import replace

from gateway.routing import lane_of, open_lanes
from schemas import limits
from schemas.operations import ProcessState
from tests.gateway_platform import WORKER

LANES = range(limits.LANES)


def test_a_known_prompt_keeps_its_lane_over_releases() -> None:
    """The hash is stable: these lanes were computed once and must never move."""
    assert [lane_of(range(start, start + 40), LANES) for start in range(0, 60, 10)] == KNOWN


def test_only_the_first_two_blocks_decide() -> None:
    """Prompts that share 32 tokens share a lane; the first block alone does not decide."""
    shared = list(range(32))
    assert len({lane_of([*shared, tail], LANES) for tail in range(50)}) == 1
    block = list(range(16))
    assert len({lane_of([*block, *range(tail, tail + 16)], LANES) for tail in range(50)}) > 4


def test_short_prompts_are_spread_too() -> None:
    """A prompt below two blocks is hashed by what it has."""
    lanes = [lane_of([token], LANES) for token in range(800)]
    assert min(lanes.count(lane) for lane in LANES) > 60


def test_a_lane_that_closes_moves_only_its_own_prompts() -> None:
    """Rendezvous hashing: prompts of other lanes stay where they are."""
    left = [lane for lane in LANES if lane != 3]
    for token in range(200):
        before = lane_of([token], LANES)
        if before != 3:
            assert lane_of([token], left) == before


def test_no_lane_is_open_without_a_serving_worker() -> None:
    """Loading or draining workers alone serve nobody."""
    assert open_lanes([]) == ()
    assert open_lanes([replace(WORKER, state=ProcessState.LOADING)]) == ()
    assert open_lanes([replace(WORKER, state=ProcessState.DRAINING)]) == ()


def test_lanes_of_draining_workers_are_avoided() -> None:
    """Lanes of a draining worker close while another serves; lanes nobody reports stay open."""
    draining = replace(WORKER, state=ProcessState.DRAINING, lanes=(0, 1))
    serving = replace(WORKER, process="worker-1", lanes=(1, 2))
    assert open_lanes([draining, serving]) == (1, 2, 3, 4, 5, 6, 7)
    all_draining = replace(draining, lanes=tuple(LANES))
    assert open_lanes([all_draining, replace(serving, lanes=())]) == tuple(LANES)


KNOWN = [5, 4, 0, 4, 7, 1]
