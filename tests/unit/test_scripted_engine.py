"""The scripted engine's own promises: checkable tokens and modelled time."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from engine_workers.engine.port import EngineRejected, EngineRequest
from engine_workers.engine.script import Script, expected_token, prefix_hash, run_salt
from engine_workers.engine.scripted_engine import STEP_S_MAX, Model, ScriptedEngine
from engine_workers.engine.stop_strings import StopStrings
from schemas.requests import Sampling

SCRIPT = Script(vocab_size=1_000, eos_id=2, lowest_token_id=10, end_one_in=20)
PROMPT = tuple(range(100, 140))


def request(run_id: str, sampling: Sampling, prompt: tuple[int, ...] = PROMPT) -> EngineRequest:
    """Return a request with seed 7."""
    return EngineRequest(run_id=run_id, prompt_token_ids=prompt, sampling=sampling, seed=7)


def tokens_of(engine: ScriptedEngine, run_id: str, sampling: Sampling) -> list[int]:
    """Run one request alone; return its tokens."""
    engine.start(request(run_id, sampling), ())
    token_ids: list[int] = []
    while engine.has_work():
        for output in engine.step():
            token_ids += output.token_ids
    return token_ids


@pytest.mark.parametrize("attempt_in_hash", [False, True])
def test_tokens_are_checkable(attempt_in_hash: bool) -> None:
    """Every token, the end included, is what a checker computes from the tokens before it."""
    script = replace(SCRIPT, attempt_in_hash=attempt_in_hash)
    token_ids = tokens_of(ScriptedEngine(script), "run", Sampling(max_tokens=200, min_tokens=3))
    salt = run_salt(script, 7, "run")
    for index, token_id in enumerate(token_ids):
        prefix = prefix_hash(token_ids[:index], prefix_hash(PROMPT))
        assert token_id == expected_token(script, salt, prefix, may_end=index >= 3)


def test_attempts_differ_only_if_asked() -> None:
    """Two runs of one request are equal, unless the script mixes the run id in."""
    sampling = Sampling(max_tokens=20, ignore_eos=True)
    plain = [tokens_of(ScriptedEngine(SCRIPT), run_id, sampling) for run_id in ("a", "b")]
    mixed_script = replace(SCRIPT, attempt_in_hash=True)
    mixed = [tokens_of(ScriptedEngine(mixed_script), run_id, sampling) for run_id in ("a", "b")]
    assert plain[0] == plain[1]
    assert mixed[0] != mixed[1]


def test_a_second_run_of_an_attempt_goes_on_as_the_first() -> None:
    """What follows a slash in a run's id numbers the runs of one attempt, which draw alike."""
    script, sampling = replace(SCRIPT, attempt_in_hash=True), Sampling(max_tokens=9)
    runs = [tokens_of(ScriptedEngine(script), run_id, sampling) for run_id in ("a", "a/3", "b/3")]
    assert runs[0] == runs[1] != runs[2]


def test_a_foreign_token_shows() -> None:
    """Changing one early token changes what is expected later."""
    salt = run_salt(SCRIPT, 7, "run")
    expected = [
        expected_token(SCRIPT, salt, prefix_hash(prefix), may_end=False)
        for prefix in ([1, 2, 3, 4], [1, 9, 3, 4])
    ]
    assert expected[0] != expected[1]


def test_token_range() -> None:
    """Tokens stay above the special ids, inside the vocabulary, and off eos before the end."""
    script = Script(vocab_size=30, eos_id=20, lowest_token_id=17)
    salt = run_salt(script, 1, "run")
    drawn = {expected_token(script, salt, number << 20, may_end=False) for number in range(2_000)}
    assert drawn == set(range(17, 30)) - {20}


def test_step_time_is_modelled() -> None:
    """Prefill is cut so that no step is modelled above the bound, and costs its share of time."""
    spent: list[float] = []
    sleep: Callable[[float], None] = spent.append
    model = Model(step_s=0.05, prefill_tokens_per_s=100.0)
    engine = ScriptedEngine(SCRIPT, model, sleep=sleep)
    engine.start(request("a", Sampling(max_tokens=3, ignore_eos=True), tuple(range(10, 170))), ())
    outputs = [len(engine.step()) for _ in range(6)]
    assert outputs == [0, 0, 0, 1, 1, 1]
    assert max(spent) <= STEP_S_MAX
    assert sum(spent) == pytest.approx(6 * 0.05 + 160 / 100.0)
    assert engine.last_step_s == pytest.approx(0.05)


def test_kv_blocks_bound_what_runs() -> None:
    """A run waits until its blocks are free; one that never fits is refused."""
    sampling = Sampling(max_tokens=8, ignore_eos=True)
    engine = ScriptedEngine(SCRIPT, Model(kv_blocks=4, block_tokens=16))
    engine.start(request("a", sampling), ())
    engine.start(request("b", sampling), ())
    engine.step()
    assert (engine.stats().running, engine.stats().waiting) == (1, 1)
    with pytest.raises(EngineRejected, match="KV"):
        engine.start(request("c", Sampling(max_tokens=40)), ())
    while engine.has_work():
        engine.step()
    assert engine.stats().kv_usage == 0


def test_runs_are_bounded() -> None:
    """At most runs_max runs are admitted; the rest wait their turn."""
    engine = ScriptedEngine(SCRIPT, Model(runs_max=2))
    for run_id in "abc":
        engine.start(request(run_id, Sampling(max_tokens=2, ignore_eos=True)), ())
    first = {output.run_id for output in engine.step()}
    engine.step()
    third = {output.run_id for output in engine.step()}
    assert (first, third) == ({"a", "b"}, {"c"})


class Pieces:
    """Decodes token n as the n-th of some pieces of text."""

    def __init__(self, *pieces: str) -> None:
        self._pieces = pieces

    def step(self, token_id: int) -> str:
        """Return the piece."""
        return self._pieces[token_id]


@pytest.mark.parametrize(
    ("stop", "min_tokens", "expected"),
    [
        (("world",), 0, [None, None, "world"]),
        (("o w", "hello w"), 0, [None, "o w", None]),
        (("l", "hell"), 0, ["l", None, "l"]),
        (("hello",), 1, [None, None, None]),
        (("",), 3, [None, None, None]),
    ],
)
def test_stop_strings(stop: tuple[str, ...], min_tokens: int, expected: list[str | None]) -> None:
    """The earliest completed stop string wins, over token seams, only in text past min_tokens."""
    strings = StopStrings(stop, Pieces("hello", " wor", "ld"), min_tokens)
    assert [strings.match(token_id) for token_id in range(3)] == expected


def test_a_slow_model_steps_often() -> None:
    """Where a token takes longer than a step may, each step is short and most bring no token."""
    spent: list[float] = []
    engine = ScriptedEngine(SCRIPT, Model(step_s=5.0), sleep=spent.append)
    engine.start(request("run", Sampling(max_tokens=3, ignore_eos=True)), ())
    came_s = []
    while engine.has_work():
        if engine.step():
            came_s.append(sum(spent))
    gaps = [later - earlier for earlier, later in pairwise(came_s)]
    assert max(spent) <= STEP_S_MAX
    assert gaps == pytest.approx([5.0, 5.0])
