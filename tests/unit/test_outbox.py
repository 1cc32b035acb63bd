"""The outbox: what is put before it turns goes out as few entries, in order."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from engine_workers.echoes import Echoes
from engine_workers.outbox import Outbox
from schemas import limits
from schemas.fold import ReplyFold
from schemas.replies import Closed, Delta, Start, TokenLogprob, TopLogprob
from schemas.topics import REPLIES
from tests.builders import closed, delta, start
from tests.unit.test_fold_choices import END, LIKELY, part, whole
from tests.worker_harness import make_bench

Fact = Start | Delta | Closed


def sent(*facts: Fact) -> list[Fact]:
    """Return what one turn of the outbox puts on the log for these facts."""

    async def run() -> list[Fact]:
        bench = make_bench()
        outbox = Outbox(bench.broker.writer("w"), lambda facts, error: None, Echoes())
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


def test_choices_are_joined_apart() -> None:
    """Deltas of two choices, put in turns, become one each; the terminal stays the last."""
    terminal = whole((END, END), (1, 2), (5, 6))
    facts = (
        part(0, 0, 1),
        part(1, 0, 5),
        part(0, 1, 2, stop=END, terminal=terminal),
        part(1, 1, 6, stop=END),
    )
    joined = (part(0, 0, 1), part(1, 0, 5, 6, stop=END), part(0, 1, 2, stop=END, terminal=terminal))
    assert sent(facts[0], facts[1], facts[3], facts[2]) == list(joined)


def test_log_probabilities_are_joined_with_their_tokens() -> None:
    """One for each token of the joined delta."""
    (found,) = sent(part(0, 0, 1, logprobs=(LIKELY,)), part(0, 1, 2, logprobs=(LIKELY,)))
    assert found == part(0, 0, 1, 2, logprobs=(LIKELY, LIKELY))


def test_large_terminals_stand_in_records_of_their_own() -> None:
    """A turn's facts of one partition are cut where they would not fit an event."""
    likely = TokenLogprob(logprob=-1.0, top=(TopLogprob(token_id=1, logprob=-1.0),) * 20)

    async def run() -> int:
        bench = make_bench()
        outbox = Outbox(bench.broker.writer("w"), lambda facts, error: None, Echoes())
        for number in range(3):
            outbox.put(
                0,
                replace(
                    part(0, 0, *([1] * 12_000)), request_id=f"{number}", logprobs=(likely,) * 12_000
                ),
            )
        await outbox.run_once()
        assert all(len(record.value) < limits.EVENT_BYTES_MAX for record in bench.read(REPLIES, 0))
        return outbox.records

    assert asyncio.run(run()) == 2
