"""The engine contract on the scripted engine."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from msgspec import structs

from engine_workers.engine.port import Engine
from engine_workers.engine.script import Script, expected_token, prefix_hash, run_salt
from engine_workers.engine.scripted_engine import Model, ScriptedEngine
from schemas.replies import StopReason
from schemas.requests import Sampling
from tests.contract.engine_resume_suite import (
    Cuts,
    EngineResumeSuite,
    Forget,
    again,
    check_cuts,
)
from tests.contract.engine_suite import GREEDY, EngineSuite, fresh_prompt, request, run_all

EOS_ID = 2
SCRIPT = Script(vocab_size=49_152, eos_id=EOS_ID, lowest_token_id=17, end_one_in=16)


class NumberDecoder:
    """Shows each token as its number in brackets."""

    def step(self, token_id: int) -> str:
        """Return the token's text."""
        return f"<{token_id}>"


@pytest.fixture(scope="module")
def engine() -> Engine:
    """One engine for all tests."""
    return ScriptedEngine(
        SCRIPT,
        Model(prefill_tokens_per_s=250.0, step_s=0.01),
        decode=NumberDecoder,
    )


@pytest.fixture
def text_of() -> Callable[[Sequence[int]], str]:
    """Show tokens as the stop strings see them."""
    return lambda token_ids: "".join(f"<{token_id}>" for token_id in token_ids)


@pytest.fixture
def ending_prompt() -> list[int]:
    """Any prompt ends soon under this script."""
    return [5, 6, 7]


@pytest.fixture
def eos_id() -> int:
    """The script's end token."""
    return EOS_ID


@pytest.fixture
def cuts() -> Cuts:
    """Cut everywhere."""
    return lambda whole: range(1, whole)


@pytest.fixture
def forget_prefixes() -> Forget:
    """A script makes the same tokens from a cold cache."""
    return lambda: None


class TestScriptedEngine(EngineSuite):
    """The suite, with a script that ends runs often and a prefill rate that cuts prompts."""


class TestScriptedEngineResumed(EngineResumeSuite):
    """The suite on continued replies, cut everywhere."""


class ThirdsDecoder:
    """Shows every three tokens as one character, as a tokenizer does that splits them."""

    def __init__(self) -> None:
        self._held: list[int] = []

    def step(self, token_id: int) -> str:
        """Return the character that this token completes."""
        self._held.append(token_id)
        if len(self._held) < 3:
            return ""
        character = chr(0x4E00 + sum(self._held) % 20_000)
        self._held.clear()
        return character


def test_a_character_over_the_cut() -> None:
    """A stop string is found where the cut divides one of its characters."""
    engine = ScriptedEngine(SCRIPT, decode=ThirdsDecoder)
    prompt, sampling = fresh_prompt(20), structs.replace(GREEDY, max_tokens=24)
    (free,) = run_all(engine, request(prompt, sampling))
    decoder = ThirdsDecoder()
    text = "".join(map(decoder.step, free.token_ids))
    stopped = structs.replace(sampling, stop=(text[3:5],))
    ran = check_cuts(engine, request(prompt, stopped), lambda whole: range(1, whole))
    assert ran.stop is not None
    assert ran.stop.reason is StopReason.STOP_SEQUENCE
    assert len(ran.token_ids) == 15


def test_attempts_draw_by_their_own_run() -> None:
    """With the attempt in the hash a continuation draws by its own run on the accepted prefix."""
    script = replace(SCRIPT, attempt_in_hash=True)
    engine = ScriptedEngine(script)
    original = request(fresh_prompt(20), Sampling(max_tokens=30, ignore_eos=True), seed=5)
    (free,) = run_all(engine, original)
    emitted = free.token_ids[:10]
    later = again(original)
    (ran,) = run_all(engine, later, emitted=emitted)
    salt = run_salt(script, 5, later.run_id)
    prefix = prefix_hash((*later.prompt_token_ids, *emitted))
    for token_id in ran.token_ids:
        assert token_id == expected_token(script, salt, prefix, may_end=False)
        prefix = prefix_hash((token_id,), prefix)
    assert ran.token_ids != free.token_ids[10:]


def test_emitted_tokens_are_prefilled_in_chunks() -> None:
    """What was emitted costs prefill time as the prompt does, unless it is cached."""
    engine = ScriptedEngine(SCRIPT, Model(prefill_tokens_per_s=100.0))
    original = request(fresh_prompt(60), structs.replace(GREEDY, max_tokens=80))
    emitted = fresh_prompt(60)
    (cold,) = run_all(engine, original, emitted=emitted)
    (warm,) = run_all(engine, again(original), emitted=emitted)
    assert (cold.first_step, cold.cached_tokens) == (2, 0)  # 120 tokens, 50 a step
    assert (warm.first_step, warm.cached_tokens) == (0, 60)


def test_continued_on_another_engine() -> None:
    """An engine that never saw the request continues it as the first one would have."""
    original = request(fresh_prompt(50), Sampling(max_tokens=40), seed=3)
    (free,) = run_all(ScriptedEngine(SCRIPT), original)
    for cut in range(1, len(free.token_ids)):
        other = ScriptedEngine(SCRIPT)
        (ran,) = run_all(other, original, emitted=free.token_ids[:cut])
        assert (ran.token_ids, ran.stop) == (free.token_ids[cut:], free.stop)
