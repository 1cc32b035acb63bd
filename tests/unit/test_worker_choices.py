"""The worker on replies with several choices, grammars and log probabilities, on the memory log."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from engine_workers.worker import Worker
from schemas import limits
from schemas.fold import ReplyFold
from schemas.replies import Closed, CloseReason, Delta, Stop, StopReason, TokenLogprob
from tests.builders import closed, request, start
from tests.unit.test_fold_choices import LIKELY, part
from tests.worker_harness import Bench, make_bench, running_worker, until

Scenario = Callable[[Bench, Worker], Awaitable[None]]
LENGTH = Stop(reason=StopReason.LENGTH)


def run(
    scenario: Scenario, before: Callable[[Bench], Awaitable[None]] | None = None
) -> tuple[Bench, ReplyFold]:
    """Play a scenario against one running worker; return what the log holds of its one reply."""

    async def play() -> Bench:
        bench = make_bench()
        if before is not None:
            await before(bench)
        async with running_worker(bench) as worker:
            await scenario(bench, worker)
        return bench

    bench = asyncio.run(play())
    fold = ReplyFold()
    for fact in bench.facts():
        fold.apply(fact, 0)
    return bench, fold


async def metered(bench: Bench, worker: Worker) -> None:
    """Wait for the usage."""
    await until(lambda: bench.usage())


def tokens(fold: ReplyFold) -> list[list[int]]:
    """Return the accepted tokens by choice."""
    return [token_ids for _, token_ids in sorted(fold.accepted.items())]


def undisturbed(choices: int, max_tokens: int) -> list[list[int]]:
    """Return the tokens of a reply that nothing happened to."""

    async def before(bench: Bench) -> None:
        await bench.submit(request(choices=choices, max_tokens=max_tokens))

    return tokens(run(metered, before)[1])


def test_each_choice_is_a_run_of_its_own() -> None:
    """Four choices draw by seeds of their own, end by themselves, and are billed as one reply."""

    async def before(bench: Bench) -> None:
        await bench.submit(request(choices=4, max_tokens=6))

    bench, fold = run(metered, before)
    assert [len(choice) for choice in tokens(fold)] == [6] * 4
    assert len({tuple(choice) for choice in tokens(fold)}) == 4
    assert fold.end is not None and fold.end.terminal is not None
    assert fold.end.terminal.stops == (LENGTH,) * 4
    (usage,) = bench.usage()
    assert (usage.input_tokens, usage.output_tokens) == (3, 24)


def test_every_choice_says_its_stop_once() -> None:
    """On its last delta; the last of all carries the terminal."""

    async def before(bench: Bench) -> None:
        await bench.submit(request(choices=3, max_tokens=4))

    deltas = [fact for fact in run(metered, before)[0].facts() if isinstance(fact, Delta)]
    assert sorted(each.choice for each in deltas if each.stop) == [0, 1, 2]
    assert [each for each in deltas if each.terminal] == deltas[-1:]


def test_choices_of_a_dead_worker_are_continued() -> None:
    """One that has ended is not run again; the others go on after their accepted tokens."""
    whole = undisturbed(3, 6)

    async def before(bench: Bench) -> None:
        await bench.say(
            start("dead", choices=3),
            part(0, 0, *whole[0], attempt="dead", stop=LENGTH),
            part(1, 0, *whole[1][:2], attempt="dead"),
        )
        await bench.submit(request(choices=3, max_tokens=6))

    bench, fold = run(metered, before)
    assert tokens(fold) == whole
    assert fold.end is not None and fold.end.terminal is not None
    assert bench.usage()[0].output_tokens == 18
    mine = [fact for fact in bench.facts()[3:] if isinstance(fact, Delta)]
    assert {each.choice for each in mine} == {1, 2}
    assert min(each.first_index for each in mine if each.choice == 1) == 2


def test_what_lands_before_the_own_start_is_continued_by_choice() -> None:
    """Tokens and a stop that count while the start is on its way change only their own choices."""
    whole = undisturbed(3, 6)

    async def scenario(bench: Bench, worker: Worker) -> None:
        await bench.say(start("zombie", choices=3))
        await bench.submit(request(choices=3, max_tokens=6))
        # The worker has looked at the fold, but its start is queued behind these.
        await bench.say(part(1, 0, *whole[1][:3], attempt="zombie"))
        await bench.say(part(2, 0, *whole[2], attempt="zombie", stop=LENGTH))
        await metered(bench, worker)

    for _ in range(10):
        _, fold = run(scenario)
        assert tokens(fold) == whole
        assert fold.stops == dict.fromkeys(range(3), LENGTH)


def test_a_doubted_attempt_drops_all_its_runs() -> None:
    """After a foreign start all choices begin again behind what was accepted, none twice."""
    whole = undisturbed(3, 200)

    async def scenario(bench: Bench, worker: Worker) -> None:
        await bench.submit(request(choices=3, max_tokens=200))
        await until(lambda: len(bench.facts()) > 3)
        await bench.say(start("foreign", choices=3))
        await metered(bench, worker)
        await until(lambda: worker.deps.stats().running == 0)

    _, fold = run(scenario)
    assert tokens(fold) == whole


def test_a_close_stops_the_runs_of_all_choices() -> None:
    """A cancelled reply leaves nothing in the engine."""

    async def scenario(bench: Bench, worker: Worker) -> None:
        await bench.submit(request(choices=4, max_tokens=900))
        await until(lambda: len(bench.facts()) > 4)
        await bench.say(closed())
        await metered(bench, worker)
        await until(lambda: worker.deps.stats().running == 0)

    assert run(scenario)[0].usage()[0].close_reason == "cancelled"


def test_one_refused_choice_fails_the_reply() -> None:
    """The engine's reason is the close's message, and no other run goes on."""

    async def scenario(bench: Bench, worker: Worker) -> None:
        await bench.submit(request(choices=3, grammar='{"regex": "a"}'))
        await metered(bench, worker)
        await until(lambda: worker.deps.stats().running == 0)

    bench, fold = run(scenario)
    last = bench.facts()[-1]
    assert isinstance(last, Closed) and last.reason is CloseReason.FAILED
    assert last.message is not None and last.message.startswith("grammar")
    assert fold.accepted_count == 0


def test_log_probabilities_go_to_the_terminal() -> None:
    """Every token's stand in its delta and again in the terminal, by choice."""

    async def before(bench: Bench) -> None:
        await bench.submit(request(choices=2, max_tokens=5, logprobs=2))

    bench, fold = run(metered, before)
    assert fold.end is not None and fold.end.terminal is not None
    parts = fold.end.terminal.tokens
    assert [list(each.logprobs or ()) for each in parts] == [
        fold.logprobs[(0, 0)],
        fold.logprobs[(0, 1)],
    ]
    assert all(len(each.top) == 2 for each in fold.logprobs[(0, 0)])
    for fact in bench.facts():
        if isinstance(fact, Delta):
            assert len(fact.logprobs or ()) == len(fact.token_ids)


def test_log_probabilities_survive_a_takeover() -> None:
    """Those of a dead worker's tokens are the log's; the terminal has them all."""

    async def before(bench: Bench) -> None:
        await bench.say(start("dead"), part(0, 0, 5, 6, attempt="dead", logprobs=(LIKELY, LIKELY)))
        await bench.submit(request(max_tokens=5, logprobs=1))

    _, fold = run(metered, before)
    assert fold.end is not None and fold.end.terminal is not None
    told = fold.end.terminal.tokens[0].logprobs
    assert told is not None and told[:2] == (LIKELY, LIKELY)
    assert len(told) == 5 and all(isinstance(each, TokenLogprob) for each in told)


@pytest.mark.parametrize(
    ("choices", "max_tokens", "logprobs"),
    [(limits.REPLY_CHOICES_MAX + 1, 1, None), (16, 4_096, 20)],
)
def test_a_reply_that_could_not_be_stored_is_not_begun(
    choices: int, max_tokens: int, logprobs: int | None
) -> None:
    """A terminal must fit an event; such a request is closed as failed, with a reason."""

    async def before(bench: Bench) -> None:
        await bench.submit(request(choices=choices, max_tokens=max_tokens, logprobs=logprobs))

    (last,) = run(metered, before)[0].facts()
    assert isinstance(last, Closed) and last.reason is CloseReason.FAILED
    assert last.message is not None and "logprobs" in last.message
