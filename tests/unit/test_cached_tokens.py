"""The cached part of a prompt: one number from the engine to clients and to usage."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from engine_workers.engine.port import StepOutput
from engine_workers.job import Job, begin, cache_salt_of
from schemas.fold import ReplyFold
from schemas.replies import Delta
from schemas.requests import Dialect, Identity, RequestAccepted
from schemas.usage import UsageRecorded, usage_of
from tests.assembler_cases import END, HEADERS, assembler, data_of, decoded, token_ids
from tests.builders import REQUEST_ID, delta, request, start
from tests.unit.test_fold_choices import part, whole
from tests.worker_harness import Bench, make_bench, running_worker, until

PROMPT = tuple(range(100, 150))
"""Three full blocks and two tokens."""
IN_BLOCKS = 48


def prompt_of(dialect: Dialect, usage: dict[str, Any]) -> tuple[int, int]:
    """Return the whole prompt's tokens and the cached ones, as a dialect's client reads them."""
    match dialect:
        case Dialect.ANTHROPIC:
            cached = usage["cache_read_input_tokens"]
            return usage["input_tokens"] + usage["cache_creation_input_tokens"] + cached, cached
        case Dialect.RESPONSES:
            return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
        case _:
            return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def usages_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return every usage that a stream tells, of whatever dialect."""
    holders = [each.get("message") or each.get("response") or each for each in events]
    return [holder["usage"] for holder in holders if holder.get("usage")]


@pytest.mark.parametrize("cached", [None, 0, 16, 24])
@pytest.mark.parametrize("dialect", list(Dialect))
def test_every_dialect_shows_it_wherever_it_tells_usage(
    dialect: Dialect, cached: int | None
) -> None:
    """Streamed and whole say one number, and its parts or its whole are the prompt's tokens."""
    header = HEADERS[dialect]
    reply, ids = assembler(header), token_ids("hi")
    events = [*reply.opening(cached), *reply.feed(0, ids), *reply.finish((END,))]
    body = decoded(assembler(header).whole(whole((END,), tuple(ids)), cached))
    assert decoded(reply.body()) == body
    data = [data_of(each) for each in events if b"[DONE]" not in each.payload]
    told = [prompt_of(dialect, usage) for usage in usages_of([*data, body])]
    assert told == [(25, cached or 0)] * (3 if dialect is Dialect.ANTHROPIC else 2)


def test_the_first_accepted_tokens_tell_it() -> None:
    """Neither an attempt that did not count nor a later choice's first tokens change it; the end
    and usage repeat it."""
    fold = ReplyFold()
    fold.apply(start("a", choices=2), 100)
    fold.apply(start("b", choices=2), 101)
    assert not fold.apply(replace(delta(0, 5), cached_tokens=8), 102)
    assert fold.apply(replace(part(1, 0, 6, attempt="b"), cached_tokens=2), 103)
    fold.apply(start("c", choices=2), 104)
    first = part(0, 0, 5, attempt="c", stop=END)
    assert fold.apply(replace(first, cached_tokens=3), 105)
    terminal = whole((END, END), (5,), (6, 7))
    assert fold.apply(part(1, 1, 7, attempt="c", stop=END, terminal=terminal), 106)
    assert fold.end is not None
    assert fold.cached_tokens == fold.end.cached_tokens == 2
    assert usage_of(REQUEST_ID, fold).cached_tokens == 2


def test_of_several_choices_the_first_to_speak_tells_it() -> None:
    """What another choice finds of the prompt is what this request has put there itself."""
    asked = request(prompt=PROMPT, choices=2)
    job = Job(request=asked, lane=0, append_time_ms=1, taken_ms=1, offsets=[0])
    job.attempt = begin(asked, "a", ReplyFold(), 1)
    for choice, found in ((0, 16), (1, IN_BLOCKS)):
        run_id = job.attempt.runs[choice].run_id
        made = StepOutput(run_id=run_id, choice=0, token_ids=(7,), cached_tokens=found)
        job.attempt.take(made, 2)
    assert [each.cached_tokens for each in job.next_deltas(3)] == [16, 16]
    made = StepOutput(run_id="a", choice=0, token_ids=(8,), cached_tokens=16)
    job.attempt.take(made, 4)
    assert [each.cached_tokens for each in job.next_deltas(5)] == [None]


def test_a_prompt_is_found_again_by_its_own_workspace_alone() -> None:
    """The second request of a workspace shows what the engine found; others' first ones 0."""
    askers = [("acme", "a"), ("acme", "a"), ("globex", "a"), ("acme", "b"), ("acme", "b")]

    async def play() -> Bench:
        bench = make_bench()
        async with running_worker(bench):
            for number, (org, workspace) in enumerate(askers):
                who = Identity(org=org, workspace=workspace, key_id="key")
                await bench.submit(_asked(number, who))
                await until(lambda: len(bench.usage()) > number)  # noqa: B023  # waited for here
        return bench

    bench = asyncio.run(play())
    rows = {int(row.request_id[-1]): row for row in bench.usage()}
    assert [_counts(rows[number]) for number in range(5)] == [
        (50, cached, 4) for cached in (0, IN_BLOCKS, 0, 0, IN_BLOCKS)
    ]
    told = [fact.cached_tokens for fact in bench.facts() if isinstance(fact, Delta)]
    assert [count for count in told if count is not None] == [0, IN_BLOCKS, 0, 0, IN_BLOCKS]


def _asked(number: int, identity: Identity) -> RequestAccepted:
    name = f"{REQUEST_ID[:-1]}{number}"
    return replace(request(name, prompt=PROMPT, max_tokens=4), identity=identity)


def _counts(row: UsageRecorded) -> tuple[int, int, int]:
    return row.input_tokens, row.cached_tokens, row.output_tokens


def test_salts_tell_workspaces_apart_and_nothing_else() -> None:
    """Keys and users of one workspace share its salt; names cannot be put together alike."""
    one = Identity(org="a", workspace="bc", key_id="k1", user="ann")
    assert cache_salt_of(one) == cache_salt_of(replace(one, key_id="k2", user=None))
    others = [("ab", "c"), ("a", "b"), ("bc", "a"), ("a", "BC")]
    salts = {cache_salt_of(replace(one, org=org, workspace=space)) for org, space in others}
    assert len(salts | {cache_salt_of(one)}) == 5
