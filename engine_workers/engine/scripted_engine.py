"""A deterministic engine without a model, for simulation and for load tests of all the rest.

Owns: when runs are admitted, modelled prefill rate, step time and KV blocks. Does not own: the
tokens themselves (`script`, `constrained_script`), when they are over (`continuation`), the prefix
cache, nor real time.
A step's modelled duration is in `last_step_s`; a `sleep` given by the caller spends it, the
simulator advances its own clock instead. Called by `engine_workers.pump`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine_workers.engine.constrained_script import (
    ConstrainedDraw,
    LoadGuidance,
    constrained_draw,
    token_logprob,
)
from engine_workers.engine.continuation import stop_after, stop_of_emitted
from engine_workers.engine.port import EngineRejected, EngineRequest, EngineStats, StepOutput
from engine_workers.engine.prefix_cache import PrefixCache
from engine_workers.engine.refusals import refuse_unservable
from engine_workers.engine.script import EMPTY_PREFIX, Script, expected_token, prefix_hash, run_salt
from engine_workers.engine.stop_strings import StopStrings
from schemas.assembler import TokenDecoder
from schemas.grammar import BadGrammar
from schemas.replies import Stop, TokenLogprob

STEP_S_MAX = 0.5
"""Bound of the engine port on one step; prefill is cut into chunks that fit it."""
SLOW_STEP_S = 0.1
"""A step of a model slower than that: aborts need not wait for its next token."""
UNLIMITED_CHUNK_TOKENS = 1 << 20
"""Prompt tokens of a step where prefill costs no modelled time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What decides modelled time and memory."""

    step_s: float = 0.0
    """Time between two tokens of a run. Longer than a step may take, it is spread over several."""
    prefill_tokens_per_s: float = math.inf
    runs_max: int = 64
    kv_blocks: int = 4_096
    block_tokens: int = 16
    context_tokens: int = 4_096
    crash_token_id: int | None = None
    """A prompt that holds this token ends the process, as one that a real engine dies of does."""

    @property
    def steps_per_token(self) -> int:
        """Return how many steps lie between two tokens of a run; more than 1 for slow models."""
        return max(1, math.ceil(self.step_s / SLOW_STEP_S)) if self.step_s > STEP_S_MAX else 1


class ScriptedEngine:
    """Implements `engine_workers.engine.port.Engine` without a model.

    `sleep` spends each step's modelled time in the calling thread; None leaves that to whoever
    reads `last_step_s`. `decode` makes a decoder per run that has stop strings; without it stop
    strings never match. `guidance` gives what grammars and bad words need, once they are asked for;
    without it they are refused. `crash` ends the process that calls it.
    """

    def __init__(
        self,
        script: Script,
        model: Model | None = None,
        *,
        sleep: Callable[[float], None] | None = None,
        decode: Callable[[], TokenDecoder] | None = None,
        guidance: LoadGuidance | None = None,
        crash: Callable[[], None] | None = None,
    ) -> None:
        self._script = script
        self._eos_ids = (script.eos_id,)
        self._model = model or Model()
        self._steps_per_token = self._model.steps_per_token
        self._step_s = self._model.step_s / self._steps_per_token
        self._sleep = sleep
        self._decode = decode
        self._guidance = guidance
        self._crash = crash
        self._waiting: dict[str, _Run] = {}
        self._running: dict[str, _Run] = {}
        self._ended: list[StepOutput] = []  # continuations of replies that were whole already
        self._cache = PrefixCache(
            block_tokens=self._model.block_tokens, blocks_max=self._model.kv_blocks
        )
        self._blocks_used = 0
        self._hit_tokens = 0
        self._query_tokens = 0
        self.last_step_s = 0.0

    def start(self, request: EngineRequest, emitted: Sequence[int]) -> None:
        """Add a run. Raises EngineRejected."""
        refuse_unservable(
            request,
            emitted,
            vocab_size=self._script.vocab_size,
            context_tokens=self._model.context_tokens,
        )
        if _blocks_needed(request, self._model) > self._model.kv_blocks:
            raise EngineRejected("max_tokens: with the prompt more than the KV cache holds")
        assert request.run_id not in self._waiting | self._running, "run ids are never reused"
        sampling = request.sampling
        decoder = self._decode() if sampling.stop and self._decode else None
        stops = StopStrings(sampling.stop, decoder, sampling.min_tokens) if decoder else None
        run = _Run(request, emitted, run_salt(self._script, request.seed, request.run_id), stops)
        stop = stop_of_emitted(emitted, sampling, self._eos_ids, run.match_stop)
        if stop is None:
            run.draw = constrained_draw(self._script, request, emitted, self._guidance)
            self._waiting[request.run_id] = run
        else:
            self._ended.append(run.output((), stop))

    def abort(self, run_id: str) -> None:
        """Drop a run; unknown ids are ignored."""
        self._waiting.pop(run_id, None)
        self._ended = [output for output in self._ended if output.run_id != run_id]
        if run_id in self._running:
            self._release(run_id)

    def step(self) -> list[StepOutput]:
        """Admit, prefill within the step's budget, make one token for each run past its prefill."""
        ended, self._ended = self._ended, []
        if not (self._waiting or self._running):
            self.last_step_s = 0.0
            return ended
        self._admit()
        prefilled = self._prefill(self._chunk_tokens())
        outputs = [self._decode_one(run) for run in self._running.values() if self._is_due(run)]
        for output in outputs:
            if output.stop is not None or output.refused is not None:
                self._release(output.run_id)
        self.last_step_s = self._step_s + prefilled / self._model.prefill_tokens_per_s
        if self._sleep is not None and self.last_step_s > 0:
            self._sleep(self.last_step_s)
        return ended + outputs

    def has_work(self) -> bool:
        """Tell whether any run is left."""
        return bool(self._waiting or self._running or self._ended)

    def stats(self) -> EngineStats:
        """Return current load."""
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_usage=self._blocks_used / self._model.kv_blocks,
            prefix_cache_hit_tokens=self._hit_tokens,
            prefix_cache_query_tokens=self._query_tokens,
        )

    def close(self) -> None:
        """Forget all runs."""
        self._waiting.clear()
        self._running.clear()
        self._ended.clear()

    def _admit(self) -> None:
        """Move waiting runs in, best priority first, each with all the blocks it can ever need."""
        if not self._waiting:
            return
        for run in sorted(self._waiting.values(), key=lambda run: run.request.priority):
            blocks = _blocks_needed(run.request, self._model)
            no_room = self._blocks_used + blocks > self._model.kv_blocks
            if no_room or len(self._running) >= self._model.runs_max:
                return  # strict order: a smaller run does not overtake
            del self._waiting[run.request.run_id]
            self._running[run.request.run_id] = run
            self._blocks_used += blocks
            if self._crash is not None and self._model.crash_token_id in run.to_prefill:
                self._crash()
            self._look_up(run)

    def _look_up(self, run: "_Run") -> None:
        run.cached = self._cache.look_up(run.to_prefill, run.request.cache_salt)
        run.unfilled = len(run.to_prefill) - run.cached
        self._hit_tokens += run.cached
        self._query_tokens += len(run.to_prefill)

    def _prefill(self, budget: int) -> int:
        """Spend up to `budget` tokens on unfilled runs, by admission; return how many."""
        spent = 0
        for run in self._running.values():
            if run.unfilled and spent < budget:
                chunk = min(run.unfilled, budget - spent)
                run.unfilled -= chunk
                spent += chunk
                if not run.unfilled:
                    run.prefix = self._cache.remember(run.to_prefill, run.request.cache_salt)
        return spent

    def _is_due(self, run: "_Run") -> bool:
        """Tell whether a run makes a token in this step: each one does, of models fast enough."""
        if run.unfilled:
            return False
        if self._steps_per_token == 1:
            return True
        run.idle_steps = (run.idle_steps + 1) % self._steps_per_token
        return run.idle_steps == 1

    def _decode_one(self, run: "_Run") -> StepOutput:
        sampling = run.request.sampling
        may_end = not sampling.ignore_eos and run.made >= sampling.min_tokens
        if run.draw is None:
            token_id = expected_token(self._script, run.salt, run.prefix, may_end=may_end)
        else:
            try:
                token_id = run.draw.next_token(run.salt, run.prefix, may_end=may_end)
            except BadGrammar as error:
                return run.output((), None, refused=str(error))
        logprobs = None
        if sampling.logprobs is not None:
            top = sampling.logprobs
            logprobs = (token_logprob(self._script, run.salt, run.prefix, token_id, top),)
        run.prefix = prefix_hash((token_id,), run.prefix)
        run.made += 1
        stop = stop_after(token_id, run.made, sampling, self._eos_ids, run.match_stop)
        return run.output((token_id,), stop, logprobs=logprobs)

    def _release(self, run_id: str) -> None:
        run = self._running.pop(run_id)
        self._blocks_used -= _blocks_needed(run.request, self._model)

    def _chunk_tokens(self) -> int:
        if math.isinf(self._model.prefill_tokens_per_s):
            return UNLIMITED_CHUNK_TOKENS
        return max(1, int((STEP_S_MAX - self._step_s) * self._model.prefill_tokens_per_s))


class _Run:
    """One run's mutable state."""

    __slots__ = (
        "cached",
        "draw",
        "idle_steps",
        "made",
        "prefix",
        "request",
        "salt",
        "stops",
        "to_prefill",
        "unfilled",
    )

    def __init__(
        self,
        request: EngineRequest,
        emitted: Sequence[int],
        salt: int,
        stops: StopStrings | None,
    ) -> None:
        self.request = request
        self.salt = salt
        self.stops = stops
        self.draw: ConstrainedDraw | None = None
        self.to_prefill = (*request.prompt_token_ids, *emitted)
        self.prefix = EMPTY_PREFIX
        self.made = len(emitted)
        self.idle_steps = 0
        self.cached = 0
        self.unfilled = len(self.to_prefill)

    def match_stop(self, token_id: int) -> str | None:
        return self.stops.match(token_id) if self.stops else None

    def output(
        self,
        token_ids: tuple[int, ...],
        stop: Stop | None,
        *,
        logprobs: tuple[TokenLogprob, ...] | None = None,
        refused: str | None = None,
    ) -> StepOutput:
        return StepOutput(
            run_id=self.request.run_id,
            choice=0,
            token_ids=token_ids,
            cached_tokens=min(self.cached, len(self.request.prompt_token_ids)),
            stop=stop,
            logprobs=logprobs,
            refused=refused,
        )


def _blocks_needed(request: EngineRequest, model: Model) -> int:
    tokens = len(request.prompt_token_ids) + request.sampling.max_tokens
    return -(-tokens // model.block_tokens)
