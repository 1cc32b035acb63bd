"""The engine port's contract on continued replies, run on every engine.

A reply is made undisturbed, cut, and continued from each cut by a run of its own: tokens and stop
must be those of the undisturbed run. (Each sampling feature is `engine_feature_suite`'s.) Beside
`engine_suite`'s fixtures a subclass gives `cuts`, which tells where to cut a reply of n tokens, and
`forget_prefixes`, which empties the prefix cache (or does nothing, where a cold one computes
nothing else).
"""

from collections.abc import Callable, Iterable, Sequence

import pytest
from msgspec.structs import replace

from engine_workers.engine.port import Engine, EngineRejected, EngineRequest
from schemas.replies import Stop, StopReason
from schemas.requests import Sampling
from tests.contract.engine_suite import (
    ENDS_WITHIN,
    GREEDY,
    Ran,
    fresh_prompt,
    request,
    run_all,
    stop_over_seam,
)

Cuts = Callable[[int], Iterable[int]]
Forget = Callable[[], None]
DRAWN = Sampling(max_tokens=24, temperature=1.0, ignore_eos=True)


def again(original: EngineRequest) -> EngineRequest:
    """Return the same request under a fresh run id."""
    fresh = request(original.prompt_token_ids, original.sampling)
    return replace(original, run_id=fresh.run_id)


def check_cuts(
    engine: Engine, original: EngineRequest, cuts: Cuts, *, forget: Forget = lambda: None
) -> Ran:
    """Run undisturbed and continue from each cut; return the undisturbed run."""
    (free,) = run_all(engine, original)
    whole = len(free.token_ids)
    differing = []
    for cut in cuts(whole):
        forget()
        (ran,) = run_all(engine, again(original), emitted=free.token_ids[:cut])
        if (ran.token_ids, ran.stop) != (free.token_ids[cut:], free.stop):
            differing.append((cut, ran.token_ids, ran.stop))
    assert not differing, f"undisturbed: {free}"
    (nothing,) = run_all(engine, again(original), emitted=free.token_ids)
    assert (nothing.token_ids, nothing.stop, nothing.first_step) == ([], free.stop, 0)
    return free


class EngineResumeSuite:
    """What `engine_workers.engine.port.Engine.start` promises of `emitted`."""

    def test_continued_end(
        self, engine: Engine, cuts: Cuts, ending_prompt: list[int], eos_id: int
    ) -> None:
        """A continued reply ends by itself where the undisturbed one does, and so says a whole
        one."""
        natural = Sampling(max_tokens=ENDS_WITHIN, temperature=0.0)
        free = check_cuts(engine, request(ending_prompt, natural), cuts)
        assert free.stop == Stop(reason=StopReason.END)
        assert free.token_ids[-1] == eos_id

    def test_continued_min_tokens(
        self, engine: Engine, cuts: Cuts, ending_prompt: list[int], eos_id: int
    ) -> None:
        """min_tokens counts the emitted tokens, before and after the place of the natural end."""
        natural = Sampling(max_tokens=ENDS_WITHIN, temperature=0.0)
        (short,) = run_all(engine, request(ending_prompt, natural))
        end = len(short.token_ids) - 1
        held = replace(natural, min_tokens=end + 6, max_tokens=end + 12)
        original = request(ending_prompt, held)
        free = check_cuts(engine, original, lambda whole: {*cuts(whole), end, end + 3})
        assert eos_id not in free.token_ids[: end + 6]

    def test_continued_ignore_eos(
        self, engine: Engine, cuts: Cuts, ending_prompt: list[int], eos_id: int
    ) -> None:
        """With ignore_eos an end token last in `emitted` ends nothing."""
        forced = Sampling(max_tokens=24, temperature=0.0, ignore_eos=True)
        original = request(ending_prompt, forced)
        (free,) = run_all(engine, again(original))
        ends = [i + 1 for i, token_id in enumerate(free.token_ids[:-1]) if token_id == eos_id]
        check_cuts(engine, original, lambda whole: {*cuts(whole), *ends[:1]})
        (ran,) = run_all(engine, again(original), emitted=(free.token_ids[0], eos_id))
        assert len(ran.token_ids) == 22

    @pytest.mark.parametrize("min_tokens", [0, 6])
    def test_continued_stop_string(
        self,
        engine: Engine,
        cuts: Cuts,
        text_of: Callable[[Sequence[int]], str],
        min_tokens: int,
    ) -> None:
        """A stop string that the cut divides ends the continued reply where it ends the other."""
        sampling = replace(GREEDY, max_tokens=16)
        prompt = fresh_prompt(20)
        (free,) = run_all(engine, request(prompt, sampling))
        stop, completed_by = stop_over_seam(free.token_ids, text_of, first=min_tokens)
        stopped = replace(sampling, stop=("never to be found", stop), min_tokens=min_tokens)
        ran = check_cuts(engine, request(prompt, stopped), cuts)
        assert ran.stop == Stop(reason=StopReason.STOP_SEQUENCE, stop_sequence=stop)
        assert len(ran.token_ids) == completed_by + 1
        last = replace(stopped, max_tokens=completed_by + 1)
        (nothing,) = run_all(engine, request(prompt, last), emitted=ran.token_ids)
        assert nothing.stop == ran.stop  # it goes before the length, as in a run of its own

    def test_continued_cache(self, engine: Engine) -> None:
        """Emitted tokens are found in the prefix cache too, but cached_tokens counts the prompt."""
        prompt, long = fresh_prompt(70), replace(GREEDY, max_tokens=64)
        (free,) = run_all(engine, request(prompt, long))
        emitted = free.token_ids[:60]
        run_all(engine, request(prompt, long), emitted=emitted)
        before = engine.stats()
        (ran,) = run_all(engine, request(prompt, long), emitted=emitted)
        after = engine.stats()
        assert ran.token_ids == free.token_ids[60:]
        assert ran.cached_tokens == len(prompt)
        found = after.prefix_cache_hit_tokens - before.prefix_cache_hit_tokens
        queried = after.prefix_cache_query_tokens - before.prefix_cache_query_tokens
        assert len(prompt) < found < queried == 130

    def test_continued_cache_is_salted(self, engine: Engine) -> None:
        """A continued run finds its prompt where the attempt before it had the same salt."""
        asked = request(fresh_prompt(70), GREEDY)
        (free,) = run_all(engine, replace(asked, cache_salt="a"))
        found = {}
        for salt in ("b", "a"):
            salted = replace(again(asked), cache_salt=salt)
            (ran,) = run_all(engine, salted, emitted=free.token_ids[:4])
            assert ran.token_ids == free.token_ids[4:]
            found[salt] = ran.cached_tokens
        assert found["a"] and not found["b"]

    def test_continued_over_chunks(self, engine: Engine, forget_prefixes: Forget) -> None:
        """A seeded run draws on rightly where prompt and emitted are prefilled in chunks."""
        original = request(fresh_prompt(130), replace(DRAWN, max_tokens=32), seed=3)
        check_cuts(engine, original, lambda whole: (whole - 4,), forget=forget_prefixes)

    def test_continued_together(self, engine: Engine) -> None:
        """Continued runs, whole ones and fresh ones go together; each makes what is left."""
        prompts = [fresh_prompt(60) for _ in range(6)]
        requests = [request(prompt, DRAWN, seed=n) for n, prompt in enumerate(prompts)]
        made = {each.run_id: 4 * n for n, each in enumerate(requests)}  # the last lacks 4
        whole = request(fresh_prompt(10), GREEDY)
        for each in requests:
            engine.start(each, fresh_prompt(made[each.run_id]))
        engine.start(whole, fresh_prompt(8))
        first = engine.step()
        assert [each.stop for each in first if each.run_id == whole.run_id] == [
            Stop(reason=StopReason.LENGTH)
        ]
        outputs = first
        while engine.has_work():
            outputs += engine.step()
        for output in outputs:
            made[output.run_id] = made.get(output.run_id, 8) + len(output.token_ids)
        assert made == {each.run_id: 24 for each in requests} | {whole.run_id: 8}

    def test_abort_continued(self, engine: Engine) -> None:
        """Continued runs can be aborted before their first step, whole ones too."""
        unfinished, whole = request(fresh_prompt(20), GREEDY), request(fresh_prompt(20), GREEDY)
        engine.start(unfinished, fresh_prompt(3))
        engine.start(whole, fresh_prompt(8))
        assert engine.has_work()
        engine.abort(unfinished.run_id)
        engine.abort(whole.run_id)
        assert not engine.has_work()
        assert engine.step() == []

    def test_emitted_refused(
        self, engine: Engine, text_of: Callable[[Sequence[int]], str], eos_id: int
    ) -> None:
        """Emitted tokens that no attempt can have made are refused, and nothing was started."""
        sampling = replace(GREEDY, ignore_eos=False)
        (free,) = run_all(engine, request(fresh_prompt(20), replace(GREEDY, max_tokens=16)))
        stop, completed_by = stop_over_seam(free.token_ids, text_of)
        stopped = replace(GREEDY, max_tokens=16, stop=(stop,))
        for asked, emitted in (
            (sampling, (1 << 30,)),
            (sampling, (-1,)),
            (sampling, [1_000] * 9),
            (sampling, [1_000, eos_id, 1_000]),
            (stopped, free.token_ids[: completed_by + 2]),
        ):
            with pytest.raises(EngineRejected, match="emitted"):
                engine.start(request(fresh_prompt(5), asked), emitted)
            assert not engine.has_work()
