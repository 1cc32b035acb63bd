"""The worker on replies that their clients get whole, on the memory log."""

from engine_workers.worker import Worker
from schemas.replies import Closed, CloseReason, Delta, Start
from schemas.topics import REPLIES
from tests.builders import request
from tests.unit.test_worker_rules import LONG, ended_workers, run
from tests.worker_harness import Bench, until


def test_the_tokens_of_a_whole_reply_travel_together() -> None:
    """Nobody sees them before the end, so two choices of five tokens are one record."""

    async def scenario(bench: Bench, worker: Worker) -> None:
        await bench.submit(request(max_tokens=5, choices=2, stream=False))
        await until(lambda: bench.usage())

    bench = run(scenario)
    records = bench.read(REPLIES, 0)
    assert len(records) == 2, "a start, and all tokens with the terminal"
    assert [usage.output_tokens for usage in bench.usage()] == [10]


def test_a_long_whole_reply_is_not_held_back_until_its_end() -> None:
    """Its tokens are accepted now and then, so that the next owner does not begin again."""

    async def scenario(bench: Bench, worker: Worker) -> None:
        await bench.submit(request(max_tokens=LONG, stream=False))
        await until(lambda: len(bench.facts()) >= 3)
        assert not bench.usage(), "it still runs"

    facts = run(scenario).facts()
    assert isinstance(facts[0], Start)
    tokens = [fact for fact in facts if isinstance(fact, Delta)]
    assert all(fact.terminal is None for fact in tokens)
    assert min(len(fact.token_ids) for fact in tokens) > 1


def test_a_deadline_bills_what_was_held_back() -> None:
    """Tokens made before the deadline are accepted before the close, as a stream's are."""

    async def scenario(bench: Bench, worker: Worker) -> None:
        deadline_ms = worker.deps.clock.now_ms() + 200
        await bench.submit(request(max_tokens=LONG, stream=False, deadline_ms=deadline_ms))
        await until(lambda: bench.usage())

    bench = run(scenario)
    *_, last, close = bench.facts()
    assert isinstance(close, Closed) and close.reason is CloseReason.DEADLINE
    assert isinstance(last, Delta)
    (usage,) = bench.usage()
    assert usage.input_tokens > 0 and usage.output_tokens > 0


def test_a_suspect_shows_its_first_token_at_once() -> None:
    """It runs alone until then, and ending this process before would end it for good."""

    async def before(bench: Bench) -> None:
        await bench.say(*ended_workers(3))

    async def scenario(bench: Bench, worker: Worker) -> None:
        await bench.submit(request(max_tokens=LONG, stream=False))
        await until(lambda: any(isinstance(fact, Delta) for fact in bench.facts()))

    first = next(fact for fact in run(scenario, before).facts() if isinstance(fact, Delta))
    assert len(first.token_ids) < 50, "a quarter second makes hundreds"
