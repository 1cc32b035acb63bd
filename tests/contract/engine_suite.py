"""The engine port's contract, run on every engine.

A subclass gives the fixtures: an `engine` (shared by all tests: each leaves it without work), a
`text_of` that shows token ids as the engine's stop strings see them, and `ending_prompt`, after
which the engine ends by itself within `ENDS_WITHIN` tokens.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from engine_workers.engine.port import Engine, EngineRejected, EngineRequest, StepOutput
from schemas.replies import Stop, StopReason, TokenLogprob
from schemas.requests import LogitBias, Sampling

ENDS_WITHIN = 60
_NUMBERS = itertools.count()
GREEDY = Sampling(max_tokens=8, temperature=0.0, ignore_eos=True)


@dataclass
class Ran:
    """What one run gave."""

    token_ids: list[int] = field(default_factory=list)
    cached_tokens: int | None = None
    stop: Stop | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    first_step: int | None = None


def request(
    prompt: Sequence[int], sampling: Sampling, *, seed: int = 0, priority: int = 0
) -> EngineRequest:
    """Return a request under a fresh run id."""
    return EngineRequest(
        run_id=f"run-{next(_NUMBERS)}",
        prompt_token_ids=tuple(prompt),
        sampling=sampling,
        seed=seed,
        priority=priority,
    )


def fresh_prompt(size: int) -> list[int]:
    """Return a prompt that shares no prefix with any other."""
    number = next(_NUMBERS)
    return [1_000 + (number * 7_919 + index * 31) % 20_000 for index in range(size)]


def run_all(
    engine: Engine,
    *runs: EngineRequest | tuple[EngineRequest, Sequence[int]],
    emitted: Sequence[int] = (),
) -> list[Ran]:
    """Start all runs, step until all have ended, check each output on the way.

    A run may bring its own `emitted`.
    """
    pairs = [run if isinstance(run, tuple) else (run, emitted) for run in runs]
    results = {asked.run_id: Ran() for asked, _ in pairs}
    for asked, made in pairs:
        engine.start(asked, made)
    for step_number in range(2_000):
        if not engine.has_work():
            break
        _collect(engine.step(), results, step_number)
    assert not engine.has_work()
    return list(results.values())


def _collect(outputs: list[StepOutput], results: dict[str, Ran], step_number: int) -> None:
    seen = [(output.run_id, output.choice) for output in outputs]
    assert len(seen) == len(set(seen))
    for output in outputs:
        ran = results[output.run_id]
        assert ran.stop is None
        assert output.refused is None
        assert output.choice == 0
        if ran.first_step is None:
            ran.first_step, ran.cached_tokens = step_number, output.cached_tokens
        assert output.cached_tokens == ran.cached_tokens
        ran.token_ids.extend(output.token_ids)
        ran.logprobs.extend(output.logprobs or ())
        ran.stop = output.stop


class EngineSuite:
    """What `engine_workers.engine.port.Engine` promises."""

    def test_length(self, engine: Engine) -> None:
        """A run makes max_tokens tokens and says that it stopped for the length."""
        (ran,) = run_all(engine, request(fresh_prompt(20), GREEDY))
        assert len(ran.token_ids) == 8
        assert ran.stop == Stop(reason=StopReason.LENGTH)

    def test_idle_step(self, engine: Engine) -> None:
        """A step without any run returns nothing and there is no work."""
        assert not engine.has_work()
        assert engine.step() == []

    def test_seed_repeats(self, engine: Engine) -> None:
        """The same seed gives the same tokens, another seed other tokens."""
        drawn = replace(GREEDY, temperature=1.0, max_tokens=12)
        prompt = fresh_prompt(20)
        first, again, other = (
            run_all(engine, request(prompt, drawn, seed=seed))[0].token_ids for seed in (7, 7, 8)
        )
        assert first == again
        assert first != other

    @pytest.mark.parametrize("seed", [-1, (1 << 63) - 1])
    def test_extreme_seeds(self, engine: Engine, seed: int) -> None:
        """Every seed that fits an event is a seed: its tokens repeat."""
        drawn = replace(GREEDY, temperature=1.0)
        prompt = fresh_prompt(20)
        first, again = (run_all(engine, request(prompt, drawn, seed=seed))[0] for _ in range(2))
        assert first.token_ids == again.token_ids

    def test_greedy_repeats(self, engine: Engine) -> None:
        """At temperature 0 a run alone repeats itself, from a cold and from a warm prefix cache."""
        prompt = fresh_prompt(150)
        runs = [run_all(engine, request(prompt, GREEDY))[0] for _ in range(2)]
        assert runs[0].token_ids == runs[1].token_ids

    def test_prefix_cache(self, engine: Engine) -> None:
        """A second run of the same prompt finds blocks of it in the cache, but not all of it."""
        prompt = fresh_prompt(150)
        first, second = (run_all(engine, request(prompt, GREEDY))[0] for _ in range(2))
        assert first.cached_tokens == 0
        assert second.cached_tokens is not None
        assert 0 < second.cached_tokens < len(prompt)

    def test_prefix_cache_is_salted(self, engine: Engine) -> None:
        """A run finds what runs of its own salt have put into the cache, and nothing else; what it
        makes does not depend on the salt."""
        asked = request(prompt := fresh_prompt(70), GREEDY)
        salts = ("a", "b", None, "a")
        salted = [
            replace(asked, run_id=f"{asked.run_id}/{number}", cache_salt=salt)
            for number, salt in enumerate(salts)
        ]
        *first, again = (run_all(engine, each)[0] for each in salted)
        assert [ran.cached_tokens for ran in first] == [0, 0, 0]
        assert again.cached_tokens is not None
        assert 0 < again.cached_tokens < len(prompt)
        assert all(ran.token_ids == again.token_ids for ran in first)

    def test_end(self, engine: Engine, ending_prompt: list[int], eos_id: int) -> None:
        """A run that ends by itself shows the end token as its last and the reason end."""
        natural = Sampling(max_tokens=ENDS_WITHIN, temperature=0.0)
        (ran,) = run_all(engine, request(ending_prompt, natural))
        assert ran.stop == Stop(reason=StopReason.END)
        assert ran.token_ids[-1] == eos_id
        assert eos_id not in ran.token_ids[:-1]

    def test_min_tokens(self, engine: Engine, ending_prompt: list[int], eos_id: int) -> None:
        """min_tokens keeps a run going past its natural end."""
        natural = Sampling(max_tokens=ENDS_WITHIN * 3, temperature=0.0)
        (short,) = run_all(engine, request(ending_prompt, natural))
        least = len(short.token_ids) + 5
        (longer,) = run_all(engine, request(ending_prompt, replace(natural, min_tokens=least)))
        assert len(longer.token_ids) > least
        assert eos_id not in longer.token_ids[:least]

    def test_ignore_eos(self, engine: Engine, ending_prompt: list[int]) -> None:
        """ignore_eos makes a run go on to max_tokens."""
        forced = Sampling(max_tokens=ENDS_WITHIN + 10, temperature=0.0, ignore_eos=True)
        (ran,) = run_all(engine, request(ending_prompt, forced))
        assert len(ran.token_ids) == ENDS_WITHIN + 10
        assert ran.stop == Stop(reason=StopReason.LENGTH)

    def test_stop_string(self, engine: Engine, text_of: Callable[[Sequence[int]], str]) -> None:
        """A stop string over a token seam ends the run with the token that completes it."""
        sampling = replace(GREEDY, max_tokens=16)
        prompt, stop, completing = prompt_with_seam(engine, sampling, text_of)
        stopped = replace(sampling, stop=("never to be found", stop))
        (ran,) = run_all(engine, request(prompt, stopped))
        assert ran.stop == Stop(reason=StopReason.STOP_SEQUENCE, stop_sequence=stop)
        assert ran.token_ids == completing

    def test_stop_string_after_min_tokens(
        self, engine: Engine, text_of: Callable[[Sequence[int]], str]
    ) -> None:
        """A stop string within the first min_tokens tokens does not stop the run."""
        sampling = replace(GREEDY, max_tokens=16)
        prompt, stop, completing = prompt_with_seam(engine, sampling, text_of)
        held = replace(sampling, stop=(stop,), min_tokens=len(completing))
        (ran,) = run_all(engine, request(prompt, held))
        assert len(ran.token_ids) > len(completing)

    def test_abort(self, engine: Engine) -> None:
        """An aborted run gives nothing more, while others go on."""
        aborted, kept = (request(fresh_prompt(20), GREEDY) for _ in range(2))
        engine.start(aborted, ())
        engine.start(kept, ())
        while not engine.step():
            pass
        engine.abort(aborted.run_id)
        later: list[StepOutput] = []
        while engine.has_work():
            later += engine.step()
        assert {output.run_id for output in later} == {kept.run_id}
        assert later[-1].stop == Stop(reason=StopReason.LENGTH)

    def test_abort_before_first_step(self, engine: Engine) -> None:
        """A run aborted before its first step leaves no work."""
        aborted = request(fresh_prompt(20), GREEDY)
        engine.start(aborted, ())
        engine.abort(aborted.run_id)
        assert not engine.has_work()
        assert engine.step() == []

    def test_abort_unknown(self, engine: Engine) -> None:
        """Aborting an unknown or ended run is ignored."""
        ended = request(fresh_prompt(20), replace(GREEDY, max_tokens=1))
        run_all(engine, ended)
        engine.abort(ended.run_id)
        engine.abort("never started")
        assert not engine.has_work()

    def test_priority(self, engine: Engine) -> None:
        """Of waiting runs the one with the lowest priority number gets its first token first."""
        ordinary = [request(fresh_prompt(100), GREEDY, priority=1) for _ in range(8)]
        urgent = request(fresh_prompt(100), GREEDY, priority=0)
        *others, first = run_all(engine, *ordinary, urgent)
        assert first.first_step is not None
        assert all(other.first_step is not None for other in others)
        assert all(first.first_step <= (other.first_step or 0) for other in others)
        assert any(first.first_step < (other.first_step or 0) for other in others)

    def test_many_seeded(self, engine: Engine) -> None:
        """45 seeded runs started at once all end, also where a step's budget cuts a prompt."""
        drawn = replace(GREEDY, temperature=1.0, max_tokens=3)
        runs = run_all(
            engine, *(request(fresh_prompt(45), drawn, seed=number) for number in range(45))
        )
        assert all(len(ran.token_ids) == 3 for ran in runs)

    def test_seed_over_chunks(self, engine: Engine) -> None:
        """A seeded run draws the same tokens whether or not its prompt was prefilled in chunks."""
        drawn = replace(GREEDY, temperature=1.0)
        prompt = fresh_prompt(400)
        chunked = run_all(engine, request(prompt, drawn, seed=3))[0]
        cached = run_all(engine, request(prompt, drawn, seed=3))[0]
        assert cached.cached_tokens
        assert chunked.token_ids == cached.token_ids

    def test_stats(self, engine: Engine) -> None:
        """Stats count runs and prefix cache look-ups; the KV cache is empty again at the end."""
        before = engine.stats()
        prompt = fresh_prompt(150)
        engine.start(request(prompt, GREEDY), ())
        assert engine.stats().waiting == 1
        while not engine.step():
            pass
        during = engine.stats()
        assert (during.running, during.waiting) == (1, 0)
        assert 0 < during.kv_usage <= 1
        while engine.has_work():
            engine.step()
        run_all(engine, request(prompt, GREEDY))
        after = engine.stats()
        assert (after.running, after.waiting, after.kv_usage) == (0, 0, 0)
        queried = after.prefix_cache_query_tokens - before.prefix_cache_query_tokens
        assert queried == 2 * len(prompt)
        assert after.prefix_cache_hit_tokens > before.prefix_cache_hit_tokens

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"max_tokens": 0}, "max_tokens"),
            ({"max_tokens": 1_000_000}, "max_tokens"),
            ({"min_tokens": 9}, "min_tokens"),
            ({"temperature": -1.0}, "temperature"),
            ({"temperature": float("nan")}, "temperature"),
            ({"top_p": 0.0}, "top_p"),
            ({"top_k": -1}, "top_k"),
            ({"min_p": 1.5}, "min_p"),
            ({"presence_penalty": 3.0}, "presence_penalty"),
            ({"repetition_penalty": 0.0}, "repetition_penalty"),
            ({"stop": ("",)}, "stop"),
            ({"logprobs": 21}, "logprobs"),
            ({"bad_words": (" ",)}, "bad_words"),
            ({"stop_token_ids": (1 << 30,)}, "stop_token_ids"),
            ({"logit_bias": (LogitBias(token_id=-1, bias=1.0),)}, "logit_bias"),
            ({"logit_bias": (LogitBias(token_id=1, bias=101.0),)}, "logit_bias"),
        ],
    )
    def test_sampling_refused(self, engine: Engine, changes: dict[str, object], named: str) -> None:
        """A sampling value that cannot be served is refused by name, and nothing was started."""
        bad = replace(GREEDY, **changes)
        with pytest.raises(EngineRejected, match=named):
            engine.start(request(fresh_prompt(5), bad), ())
        assert not engine.has_work()

    def test_prompt_refused(self, engine: Engine) -> None:
        """A prompt that is empty or outside the vocabulary is refused."""
        for prompt in ([], [-1], [1 << 30]):
            with pytest.raises(EngineRejected, match="prompt_token_ids"):
                engine.start(request(prompt, GREEDY), ())
        assert not engine.has_work()

    def test_grammar_refused(self, engine: Engine) -> None:
        """A grammar of no known form is refused, and one that must not say where a reply ends."""
        free = replace(GREEDY, ignore_eos=False)
        for text in ("root ::= 'a'", "[1]", '{"regex": 1}', '{"choice": []}', '{"ebnf": "a"}'):
            with pytest.raises(EngineRejected, match="grammar"):
                engine.start(replace(request([5], free), grammar=text), ())
        for sampling in (GREEDY, replace(free, min_tokens=1)):
            with pytest.raises(EngineRejected, match="min_tokens, ignore_eos"):
                engine.start(replace(request([5], sampling), grammar='{"regex": "a"}'), ())
        assert not engine.has_work()


def prompt_with_seam(
    engine: Engine, sampling: Sampling, text_of: Callable[[Sequence[int]], str]
) -> tuple[list[int], str, Sequence[int]]:
    """Return a prompt whose reply has a stop string over a seam, and the tokens that complete it.

    What a small model says to prompts without sense may hold characters of several tokens only.
    """
    for _ in range(8):
        prompt = fresh_prompt(20)
        (free,) = run_all(engine, request(prompt, sampling))
        try:
            stop, completed_by = stop_over_seam(free.token_ids, text_of)
        except AssertionError:
            continue
        return prompt, stop, free.token_ids[: completed_by + 1]
    raise AssertionError("no reply of eight has a stop string over a seam")


def stop_over_seam(
    token_ids: Sequence[int], text_of: Callable[[Sequence[int]], str], *, first: int = 3
) -> tuple[str, int]:
    """Return a stop string over a token seam, and the index of the token that completes it.

    The string lies in the text of the token before and that of the token; `first` is its lowest.
    """
    for last in range(max(first, 3), len(token_ids) - 3):
        before, text = text_of(token_ids[:last]), text_of(token_ids[: last + 1])
        end = len(before) + 1
        stop = text[end - 3 : end]
        whole = len(stop) == 3 and text.startswith(before) and "�" not in text
        if whole and text.find(stop) == end - 3:
            return stop, last
    raise AssertionError(f"no stop string over a seam in {text_of(token_ids)!r}")
