"""The outbox: what is put before it turns goes out as few entries, in order."""

import asyncio
from collections.abc import Sequence

from engine_workers.outbox import Outbox
from schemas.fold import ReplyFold
from schemas.replies import Closed, Delta, Start
from tests.builders import closed, delta, start
from tests.worker_harness import make_bench

Fact = Start | Delta | Closed


def sent(*facts: Fact) -> list[Fact]:
    """Return what one turn of the outbox puts on the log for these facts."""

    async def run() -> list[Fact]:
        bench = make_bench()
        outbox = Outbox(bench.broker.writer("w"), lambda facts, error: None)
        for fact in facts:
            outbox.put(0, fact)
        await outbox.run_once()
        return bench.facts()

    return asyncio.run(run())


def accepted(facts: Sequence[Fact]) -> tuple[list[int], bool]:
    """Return the tokens that a fold accepts, and whether it ended by a terminal."""
    fold = ReplyFold()
    for fact in facts:
        fold.apply(fact, 1)
    ended = fold.end is not None and fold.end.terminal is not None
    return fold.accepted.get((0, 0), []), ended


def test_deltas_that_follow_on_are_joined() -> None:
    """Steps of one reply that pile up are one entry, with the end that the last one has."""
    facts: list[Fact] = [start(), delta(0, 1), delta(1, 2), delta(2, 3, ends_with=(1, 2, 3))]
    found = sent(*facts)
    assert len(found) == 2
    assert accepted(found) == accepted(facts) == ([1, 2, 3], True)


def test_replies_are_joined_apart() -> None:
    """Deltas of two replies, put in turns, become one entry for each."""
    found = sent(delta(0, 1), delta(0, 5, request_id="b"), delta(1, 2), delta(1, 6, request_id="b"))
    ids = [fact.token_ids for fact in found if isinstance(fact, Delta)]
    assert ids == [(1, 2), (5, 6)]


def test_what_does_not_follow_on_is_not_joined() -> None:
    """A gap, another attempt, or a close between two deltas keeps them apart and in order."""
    apart: tuple[tuple[Fact, ...], ...] = (
        (delta(0, 1), delta(2, 3)),
        (delta(0, 1), delta(1, 2, attempt="b")),
        (delta(0, 1), closed(), delta(1, 2)),
        (delta(0, 1), start("b"), delta(1, 2)),
        (delta(0, 1, ends_with=(1,)), delta(1, 2)),
    )
    for facts in apart:
        assert sent(*facts) == list(facts)
