"""A deterministic engine without a model, for simulation and for load tests of all the rest.

Owns: when runs are admitted and end, modelled prefill rate, step time, KV blocks and prefix cache.
Does not own: the tokens themselves (`script`), nor real time. A step's modelled duration is in
`last_step_s`; a `sleep` given by the caller spends it, the simulator advances its own clock
instead. Called by `engine_workers.pump`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine_workers.engine.port import EngineRejected, EngineRequest, EngineStats, StepOutput
from engine_workers.engine.refusals import refuse_unservable
from engine_workers.engine.script import EMPTY_PREFIX, Script, expected_token, prefix_hash, run_salt
from engine_workers.engine.stop_strings import StopStrings
from schemas.assembler import TokenDecoder
from schemas.replies import Stop, StopReason

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

    @property
    def steps_per_token(self) -> int:
        """Return how many steps lie between two tokens of a run; more than 1 for slow models."""
        return max(1, math.ceil(self.step_s / SLOW_STEP_S)) if self.step_s > STEP_S_MAX else 1


class ScriptedEngine:
    """Implements `engine_workers.engine.port.Engine` without a model.

    `sleep` spends each step's modelled time in the calling thread; None leaves that to whoever
    reads `last_step_s`. `decode` makes a decoder per run that has stop strings; without it stop
    strings never match.
    """

    def __init__(
        self,
        script: Script,
        model: Model | None = None,
        *,
        sleep: Callable[[float], None] | None = None,
        decode: Callable[[], TokenDecoder] | None = None,
    ) -> None:
        self._script = script
        self._model = model or Model()
        self._steps_per_token = self._model.steps_per_token
        self._step_s = self._model.step_s / self._steps_per_token
        self._sleep = sleep
        self._decode = decode
        self._waiting: dict[str, _Run] = {}
        self._running: dict[str, _Run] = {}
        self._cached_blocks: dict[int, None] = {}  # by hash of the prefix up to the block's end
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
        sampling = request.sampling
        decoder = self._decode() if sampling.stop and self._decode else None
        assert request.run_id not in self._waiting | self._running, "run ids are never reused"
        self._waiting[request.run_id] = _Run(
            request,
            run_salt(self._script, request.seed, request.run_id),
            StopStrings(sampling.stop, decoder, sampling.min_tokens) if decoder else None,
        )

    def abort(self, run_id: str) -> None:
        """Drop a run; unknown ids are ignored."""
        self._waiting.pop(run_id, None)
        if run_id in self._running:
            self._release(run_id)

    def step(self) -> list[StepOutput]:
        """Admit, prefill within the step's budget, make one token for each run past its prefill."""
        if not (self._waiting or self._running):
            self.last_step_s = 0.0
            return []
        self._admit()
        prefilled = self._prefill(self._chunk_tokens())
        outputs = [self._decode_one(run) for run in self._running.values() if self._is_due(run)]
        for output in outputs:
            if output.stop is not None:
                self._release(output.run_id)
        self.last_step_s = self._step_s + prefilled / self._model.prefill_tokens_per_s
        if self._sleep is not None and self.last_step_s > 0:
            self._sleep(self.last_step_s)
        return outputs

    def has_work(self) -> bool:
        """Tell whether any run is left."""
        return bool(self._waiting or self._running)

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
            self._look_up(run)

    def _look_up(self, run: "_Run") -> None:
        """Count cached blocks; the last prompt token is always computed, as in vLLM."""
        prompt, size = run.request.prompt_token_ids, self._model.block_tokens
        state, cached = EMPTY_PREFIX, 0
        while cached + size < len(prompt):
            state = prefix_hash(prompt[cached : cached + size], state)
            if state not in self._cached_blocks:
                break
            cached += size
        run.cached = cached
        run.unfilled = len(prompt) - cached
        self._hit_tokens += cached
        self._query_tokens += len(prompt)

    def _prefill(self, budget: int) -> int:
        """Spend up to `budget` tokens on unfilled prompts, by admission; return how many."""
        spent = 0
        for run in self._running.values():
            if run.unfilled and spent < budget:
                chunk = min(run.unfilled, budget - spent)
                run.unfilled -= chunk
                spent += chunk
                if not run.unfilled:
                    self._remember(run)
        return spent

    def _remember(self, run: "_Run") -> None:
        """Put the prompt's full blocks into the prefix cache; set the run's hash."""
        prompt, size = run.request.prompt_token_ids, self._model.block_tokens
        state = EMPTY_PREFIX
        full = len(prompt) - len(prompt) % size
        for first in range(0, full, size):
            state = prefix_hash(prompt[first : first + size], state)
            self._cached_blocks.pop(state, None)  # newest last
            self._cached_blocks[state] = None
        while len(self._cached_blocks) > self._model.kv_blocks:
            del self._cached_blocks[next(iter(self._cached_blocks))]
        run.prefix = prefix_hash(prompt[full:], state)

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
        token_id = expected_token(self._script, run.salt, run.prefix, may_end=may_end)
        run.prefix = prefix_hash((token_id,), run.prefix)
        run.made += 1
        ended = may_end and token_id == self._script.eos_id
        return StepOutput(
            run_id=run.request.run_id,
            choice=0,
            token_ids=(token_id,),
            cached_tokens=run.cached,
            stop=Stop(reason=StopReason.END) if ended else _stop_of(run, token_id),
        )

    def _release(self, run_id: str) -> None:
        run = self._running.pop(run_id)
        self._blocks_used -= _blocks_needed(run.request, self._model)

    def _chunk_tokens(self) -> int:
        if math.isinf(self._model.prefill_tokens_per_s):
            return UNLIMITED_CHUNK_TOKENS
        return max(1, int((STEP_S_MAX - self._step_s) * self._model.prefill_tokens_per_s))


class _Run:
    """One run's mutable state."""

    __slots__ = ("cached", "idle_steps", "made", "prefix", "request", "salt", "stops", "unfilled")

    def __init__(self, request: EngineRequest, salt: int, stops: StopStrings | None) -> None:
        self.request = request
        self.salt = salt
        self.stops = stops
        self.prefix = EMPTY_PREFIX
        self.made = 0
        self.idle_steps = 0
        self.cached = 0
        self.unfilled = len(request.prompt_token_ids)


def _stop_of(run: _Run, token_id: int) -> Stop | None:
    """Return why a run ends after a token that is not eos; a stop string goes before the length."""
    matched = run.stops.match(token_id) if run.stops else None
    if matched is not None:
        return Stop(reason=StopReason.STOP_SEQUENCE, stop_sequence=matched)
    if run.made >= run.request.sampling.max_tokens:
        return Stop(reason=StopReason.LENGTH)
    return None


def _blocks_needed(request: EngineRequest, model: Model) -> int:
    tokens = len(request.prompt_token_ids) + request.sampling.max_tokens
    return -(-tokens // model.block_tokens)
