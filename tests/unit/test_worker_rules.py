"""The worker on the memory log: each clause of design rules 6.2 to 6.6 that it has to keep."""

import asyncio
from collections.abc import Awaitable, Callable

from engine_workers.engine.script import Script, expected_token, prefix_hash, run_salt
from engine_workers.worker import Worker
from infra.ports import TopicPartition
from schemas.fold import ReplyFold
from schemas.replies import Closed, CloseReason, Delta, Start
from schemas.topics import REPLIES, workers_group
from tests.builders import REQUEST_ID, closed, delta, request, start
from tests.worker_harness import POOL, TOPIC, Bench, make_bench, running_worker, until

Scenario = Callable[[Bench, Worker], Awaitable[None]]
LONG = 4_000
"""More tokens than a test waits for: a reply that only a close ends."""


def run(scenario: Scenario, before: Callable[[Bench], Awaitable[None]] | None = None) -> Bench:
    """Play a scenario against one running worker; `before` plays before it starts."""

    async def play() -> Bench:
        bench = make_bench()
        if before is not None:
            await before(bench)
        async with running_worker(bench) as worker:
            await scenario(bench, worker)
        return bench

    return asyncio.run(play())


def accepted(bench: Bench) -> list[int]:
    """Return the accepted tokens of the one reply of partition 0."""
    fold = ReplyFold()
    for fact in bench.facts():
        fold.apply(fact, 0)
    return fold.accepted[(0, 0)]


def test_a_fresh_request_is_started_answered_and_metered_once() -> None:
    """Start, tokens, terminal, usage; then its offset is committed."""

    async def scenario(bench: Bench, worker: Worker) -> None:
        await bench.submit(request(max_tokens=5))
        await until(lambda: bench.usage())
        await asyncio.sleep(0.6)
        assert await bench.committed() == 1

    bench = run(scenario)
    facts = bench.facts()
    assert isinstance(facts[0], Start)
    tokens = [fact for fact in facts if isinstance(fact, Delta)]
    assert sum(len(fact.token_ids) for fact in tokens) == 5
    terminal = tokens[-1].terminal
    assert terminal is not None and len(terminal.tokens[0].token_ids) == 5
    assert [usage.output_tokens for usage in bench.usage()] == [5]


def test_nothing_is_committed_before_the_usage_is_acknowledged() -> None:
    """While a reply runs, its lane's commit stays at its offset."""

    async def scenario(bench: Bench, worker: Worker) -> None:
        await bench.submit(request(max_tokens=LONG))
        await bench.submit(request("00000000-0000-4000-8000-000000000002", max_tokens=3))
        await until(lambda: bench.usage())
        await asyncio.sleep(0.6)
        assert await bench.committed() in (None, 0)

    run(scenario)


def test_a_record_appended_after_admit_by_is_closed_as_late() -> None:
    """A late landing never runs: no start, a close, a usage row that bills nothing."""

    async def scenario(bench: Bench, worker: Worker) -> None:
        await bench.submit(request(admit_by_ms=1))
        await until(lambda: bench.usage())

    bench = run(scenario)
    assert [type(fact) for fact in bench.facts()] == [Closed]
    assert (bench.usage()[0].close_reason, bench.usage()[0].output_tokens) == ("late", 0)


def test_a_request_past_its_deadline_is_closed() -> None:
    """Work that nobody waits for is not begun."""

    async def scenario(bench: Bench, worker: Worker) -> None:
        await bench.submit(request(deadline_ms=1))
        await until(lambda: bench.usage())

    assert run(scenario).usage()[0].close_reason == "deadline"


def test_a_redelivered_record_of_an_ended_reply_is_metered_again_and_not_run() -> None:
    """A copy of a record, delivered after the end, emits the same bytes of usage."""

    async def scenario(bench: Bench, worker: Worker) -> None:
        await bench.submit(request(max_tokens=2))
        await until(lambda: bench.usage() and not len(worker.jobs))
        await bench.submit(request(max_tokens=2))
        await until(lambda: len(bench.usage()) == 2)

    bench = run(scenario)
    assert sum(isinstance(fact, Start) for fact in bench.facts()) == 1
    assert bench.usage()[0] == bench.usage()[1]


def test_a_copy_of_a_request_in_flight_finishes_with_it() -> None:
    """An id is never run twice at once."""

    async def scenario(bench: Bench, worker: Worker) -> None:
        await bench.submit(request(max_tokens=300))
        await bench.submit(request(max_tokens=300))
        await until(lambda: bench.usage())
        await asyncio.sleep(0.6)
        assert await bench.committed() == 2

    bench = run(scenario)
    assert sum(isinstance(fact, Start) for fact in bench.facts()) == 1
    assert len(bench.usage()) == 1


def test_a_close_stops_the_engine_and_bills_what_was_accepted() -> None:
    """After a close is read back the run is gone; prompt and accepted tokens are billed once."""

    async def scenario(bench: Bench, worker: Worker) -> None:
        await bench.submit(request(max_tokens=LONG))
        await until(lambda: len(bench.facts()) > 4)
        await bench.say(closed())
        await until(lambda: bench.usage())
        await until(lambda: worker.deps.stats().running == 0)

    usage = run(scenario).usage()[0]
    assert usage.close_reason == "cancelled"
    assert (usage.input_tokens, usage.output_tokens > 0) == (3, True)


def test_a_reply_with_tokens_of_a_dead_worker_is_continued_after_them() -> None:
    """The tail scans what stands before it; the next attempt goes on behind the accepted prefix."""

    async def before(bench: Bench) -> None:
        await bench.say(start("dead"), delta(0, 5, 6, attempt="dead"))
        await bench.submit(request(max_tokens=6))

    async def scenario(bench: Bench, worker: Worker) -> None:
        await until(lambda: bench.usage())

    bench = run(scenario, before)
    tokens = accepted(bench)
    assert tokens[:2] == [5, 6]
    assert (len(tokens), bench.usage()[0].output_tokens) == (6, 6)


def test_tokens_that_land_before_the_own_start_are_continued_too() -> None:
    """What an earlier attempt gets accepted while our start is on its way is not made again."""

    async def scenario(bench: Bench, worker: Worker) -> None:
        await bench.say(start("zombie"))
        request_of_both = request(max_tokens=6)
        await bench.submit(request_of_both)
        # The worker has looked at the fold, but its start is queued behind this.
        await bench.say(delta(0, 5, 6, attempt="zombie"))
        await until(lambda: bench.usage())

    for _ in range(20):
        bench = run(scenario)
        tokens = accepted(bench)
        assert (len(tokens), bench.usage()[0].output_tokens) == (6, 6)
        script = Script(vocab_size=1_000, eos_id=2)
        salt = run_salt(script, 1, "")
        for index, token_id in enumerate(tokens):
            if index >= 2 or tokens[0] != 5:
                prefix = prefix_hash((1, 2, 3, *tokens[:index]))
                assert token_id == expected_token(script, salt, prefix, may_end=False)


def test_a_reply_that_only_started_is_run_afresh() -> None:
    """A start without tokens, by a worker that died, costs the client nothing."""

    async def before(bench: Bench) -> None:
        await bench.say(start("dead"))
        await bench.submit(request(max_tokens=3))

    async def scenario(bench: Bench, worker: Worker) -> None:
        await until(lambda: bench.usage())

    bench = run(scenario, before)
    assert bench.usage()[0].output_tokens == 3
    assert sum(isinstance(fact, Start) for fact in bench.facts()) == 2


def test_an_ended_reply_below_the_tail_is_metered_after_a_scan() -> None:
    """A worker that takes over a lane meters what its predecessor finished but did not commit."""

    async def before(bench: Bench) -> None:
        await bench.say(start("dead"), delta(0, 5, attempt="dead", ends_with=(5,)))
        await bench.submit(request())

    async def scenario(bench: Bench, worker: Worker) -> None:
        await until(lambda: bench.usage())

    bench = run(scenario, before)
    assert (bench.usage()[0].output_tokens, bench.usage()[0].stop_reason) == (1, "end")
    assert len(bench.facts()) == 2


def test_a_superseded_attempt_waits_for_a_commit_and_then_looks_again() -> None:
    """An own delta that did not count is doubt: abort, prove the lane, decide by the fold."""

    async def scenario(bench: Bench, worker: Worker) -> None:
        await bench.submit(request(max_tokens=300))
        await until(lambda: len(bench.facts()) > 3)
        await bench.say(start("foreign"))
        await until(lambda: bench.usage())

    bench = run(scenario)
    assert bench.usage()[0].close_reason is None
    assert len(accepted(bench)) == 300


def test_tokens_wait_for_the_own_start_to_be_read_back() -> None:
    """In log order an attempt's start always stands before its first tokens."""

    async def scenario(bench: Bench, worker: Worker) -> None:
        for index in range(8):
            await bench.submit(request(f"00000000-0000-4000-8000-0000000000{index:02}"))
        await until(lambda: len(bench.usage()) == 8)

    started: set[str] = set()
    for fact in run(scenario).facts():
        if isinstance(fact, Start):
            started.add(fact.attempt)
        elif isinstance(fact, Delta):
            assert fact.attempt in started


def test_a_floor_below_the_start_of_the_log_is_dead_lettered() -> None:
    """Nobody can know that fold any more: no usage, no run, the operator is told."""

    async def before(bench: Bench) -> None:
        for _ in range(3):
            await bench.say(start("old", request_id="old"))
        bench.broker.truncate(TopicPartition(REPLIES, 0), 2)
        await bench.submit(request(floor=0))

    async def scenario(bench: Bench, worker: Worker) -> None:
        await until(lambda: bench.buried)
        await asyncio.sleep(0.6)
        assert await bench.committed() == 1

    assert run(scenario, before).usage() == []


def test_a_record_that_is_no_request_is_buried_and_passed() -> None:
    """Poison in a lane stops nobody behind it."""

    async def scenario(bench: Bench, worker: Worker) -> None:
        await bench.broker.writer("x").send(TOPIC, 0, b"not a request")
        await bench.submit(request(max_tokens=2))
        await until(lambda: bench.usage())
        await asyncio.sleep(0.6)
        assert await bench.committed() == 2

    bench = run(scenario)
    assert [letter.offset for letter, _ in bench.buried] == [0]


def test_a_request_the_engine_refuses_is_closed_as_failed_with_its_reason() -> None:
    """The client gets an error that says why, and nothing is billed."""

    async def scenario(bench: Bench, worker: Worker) -> None:
        await bench.submit(request(prompt=(999_999,)))
        await until(lambda: bench.usage())

    bench = run(scenario)
    last = bench.facts()[-1]
    assert isinstance(last, Closed) and last.reason is CloseReason.FAILED and last.message
    assert bench.usage()[0].output_tokens == 0


def test_another_worker_takes_over_the_lanes_of_one_that_left() -> None:
    """After an orderly leave the next worker has all lanes and nothing is delivered for nothing."""

    async def play() -> None:
        bench = make_bench()
        async with running_worker(bench, "worker-0") as first:
            await bench.submit(request(max_tokens=2))
            await until(lambda: bench.usage())
            await first.drain(1.0)
            await first.leave()
        async with running_worker(bench, "worker-1"):
            await bench.submit(request("00000000-0000-4000-8000-000000000002", max_tokens=2))
            await until(lambda: len(bench.usage()) == 2)
        assert {usage.request_id for usage in bench.usage()} == {
            REQUEST_ID,
            "00000000-0000-4000-8000-000000000002",
        }

    asyncio.run(play())


def ended_workers(count: int) -> list[Start]:
    """Return starts of one request by as many workers, none of which got a token accepted."""
    return [start(f"attempt-{n}", worker=f"gone-{n}/1") for n in range(count)]


def test_a_suspect_runs_alone_until_its_first_token() -> None:
    """What runs is stopped and goes on after its accepted tokens; nobody's tokens are lost."""
    other = "00000000-0000-4000-8000-000000000002"

    async def before(bench: Bench) -> None:
        await bench.say(*ended_workers(3))

    async def scenario(bench: Bench, worker: Worker) -> None:
        await bench.submit(request(other, lane=1, max_tokens=300))
        await until(lambda: len(bench.facts()) > 8)
        await bench.submit(request(max_tokens=3))
        await until(lambda: len(bench.usage()) == 2, 20)

    bench = run(scenario, before)
    assert {(usage.close_reason, usage.output_tokens) for usage in bench.usage()} == {
        (None, 3),
        (None, 300),
    }
    starts = [fact for fact in bench.facts() if isinstance(fact, Start)][3:]
    assert [(fact.request_id, fact.alone) for fact in starts] == [
        (other, False),
        (REQUEST_ID, True),
        (other, False),
    ]
    (lonely,) = [index for index, fact in enumerate(bench.facts()) if fact == starts[1]]
    proof = next(
        index
        for index, fact in enumerate(bench.facts())
        if isinstance(fact, Delta) and fact.attempt == starts[1].attempt
    )
    meanwhile = bench.facts()[lonely + 1 : proof]
    assert not [fact for fact in meanwhile if isinstance(fact, Start)]
    assert bench.buried == []


def test_a_request_that_ended_a_worker_alone_is_closed_and_buried() -> None:
    """The client gets an error, the operator a dead letter, usage bills nothing, the lane goes
    on."""

    async def before(bench: Bench) -> None:
        await bench.say(*ended_workers(3), start("last", worker="gone-3/1", alone=True))
        await bench.submit(request())
        await bench.submit(request("00000000-0000-4000-8000-000000000002", max_tokens=2))

    async def scenario(bench: Bench, worker: Worker) -> None:
        await until(lambda: len(bench.usage()) == 2)
        await asyncio.sleep(0.6)
        assert await bench.committed() == 2

    bench = run(scenario, before)
    (end,) = [fact for fact in bench.facts() if isinstance(fact, Closed)]
    assert end.reason is CloseReason.FAILED
    assert end.message == "4 workers ended while they served the request; it was given up"
    assert [(letter.offset, reason) for letter, reason in bench.buried] == [(0, end.message)]
    assert {usage.output_tokens for usage in bench.usage()} == {0, 2}


def test_a_request_that_kills_its_worker_is_given_up_after_four() -> None:
    """Its start is on the log before the engine dies of it, so that the next worker knows."""
    other = "00000000-0000-4000-8000-000000000002"

    async def play() -> Bench:
        bench = make_bench()
        await bench.submit(request(prompt=(1, 666), max_tokens=3))
        await bench.submit(request(other, max_tokens=3))
        await asyncio.sleep(0.6)  # it is no fresh record any more
        for life in range(4):
            crashed = asyncio.Event()
            async with running_worker(bench, f"worker-{life}", crash=(666, crashed)) as worker:
                async with asyncio.timeout(5):
                    await crashed.wait()
            member_id = worker.deps.group.member_id()
            assert member_id is not None
            bench.broker.eject(workers_group(POOL), member_id)
        async with running_worker(bench, "worker-4", crash=(666, asyncio.Event())):
            await until(lambda: len(bench.usage()) == 2, 20)
        return bench

    bench = asyncio.run(play())
    starts = [fact for fact in bench.facts() if isinstance(fact, Start)]
    assert [fact.alone for fact in starts if fact.request_id == REQUEST_ID] == [
        False,
        False,
        False,
        True,
    ]
    assert {(usage.request_id, usage.output_tokens) for usage in bench.usage()} == {
        (REQUEST_ID, 0),
        (other, 3),
    }
    assert len(bench.buried) == 1
