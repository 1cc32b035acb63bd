"""The engine port on vLLM, for CPU and GPU by the same code.

Owns translation only: an EngineRequest to vLLM's sampling parameters, its outputs to StepOutputs,
its errors to the port's. Batching, KV cache, prefix cache and sampling are vLLM's. The engine is
made and stepped in the main thread (another one costs a second OpenMP pool and 30 % of the
speed); `environment.missing_environment` must be empty by then. Called by `engine_workers.pump`.
"""

from collections.abc import Sequence
from typing import Any

from engine_workers.engine.environment import VllmSettings
from engine_workers.engine.port import (
    EngineDead,
    EngineRejected,
    EngineRequest,
    EngineStats,
    StepOutput,
)
from engine_workers.engine.refusals import refuse_unservable
from schemas.replies import Stop, StopReason
from schemas.requests import Sampling

_WARM_UP_ID = "warm-up"


class VllmEngine:
    """Implements `engine_workers.engine.port.Engine`. Loading takes 10 to 30 s.

    Raises EngineDead from its constructor where vLLM cannot load the model.
    """

    def __init__(self, settings: VllmSettings) -> None:
        self._settings = settings
        self._tally = _Tally()
        try:
            self._engine = _load(settings)
        except Exception as error:
            raise EngineDead(f"vLLM cannot load {settings.model_path}: {error}") from error
        config = self._engine.vllm_config
        self._vocab_size: int = config.model_config.get_vocab_size()
        self._kv_tokens: int = config.cache_config.num_gpu_blocks * config.cache_config.block_size
        self._warm_up()

    def start(self, request: EngineRequest, emitted: Sequence[int]) -> None:
        """Add a run. Raises EngineRejected, EngineDead."""
        refuse_unservable(
            request,
            emitted,
            vocab_size=self._vocab_size,
            context_tokens=self._settings.context_tokens,
        )
        try:
            self._engine.add_request(
                request.run_id,
                {"type": "token", "prompt_token_ids": list(request.prompt_token_ids)},
                _sampling_params(request.sampling, request.seed),
                priority=request.priority,
            )
        except (ValueError, TypeError) as error:  # vLLM's own checks of parameters
            raise EngineRejected(str(error)) from error
        except Exception as error:
            raise EngineDead(f"vLLM cannot take a request: {error!r}") from error
        self._tally.started(request)

    def abort(self, run_id: str) -> None:
        """Drop a run; unknown ids are ignored. Raises EngineDead."""
        if not self._tally.knows(run_id):
            return
        try:
            self._engine.abort_request([run_id])
        except Exception as error:
            raise EngineDead(f"vLLM cannot abort a request: {error!r}") from error
        self._tally.ended(run_id)

    def step(self) -> list[StepOutput]:
        """Run one step of all runs. Raises EngineDead."""
        if not self._tally.any():
            return []
        try:
            results = self._engine.step()
        except Exception as error:
            raise EngineDead(f"a step of vLLM failed: {error!r}") from error
        outputs = [
            _step_output(result) for result in results if self._tally.knows(result.request_id)
        ]
        for output in outputs:
            self._tally.made(output)
        return [output for output in outputs if output.token_ids or output.stop is not None]

    def has_work(self) -> bool:
        """Tell whether any run is left."""
        return self._tally.any()

    def stats(self) -> EngineStats:
        """Return current load, by what was started here; shared KV blocks count for each run."""
        return self._tally.stats(self._kv_tokens)

    def close(self) -> None:
        """End the engine core and free its memory."""
        self._engine.engine_core.shutdown()

    def _warm_up(self) -> None:
        """Make a few tokens, so that the first request meets loaded kernels. Raises EngineDead."""
        sampling = Sampling(max_tokens=4, ignore_eos=True)
        prompt = tuple(range(self._settings.block_tokens))
        self.start(
            EngineRequest(run_id=_WARM_UP_ID, prompt_token_ids=prompt, sampling=sampling, seed=0),
            (),
        )
        while self.has_work():
            self.step()
        self._tally = _Tally()


class _Tally:
    """Runs that the engine has now, and totals since it was made."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}  # by run id: prompt and output
        self._prompts: dict[str, int] = {}  # by run id, until its first output
        self._hit_tokens = 0
        self._query_tokens = 0

    def knows(self, run_id: str) -> bool:
        return run_id in self._tokens

    def any(self) -> bool:
        return bool(self._tokens)

    def started(self, request: EngineRequest) -> None:
        self._tokens[request.run_id] = len(request.prompt_token_ids)
        self._prompts[request.run_id] = len(request.prompt_token_ids)

    def made(self, output: StepOutput) -> None:
        self._tokens[output.run_id] += len(output.token_ids)
        prompt_tokens = self._prompts.pop(output.run_id, None)
        if prompt_tokens is not None:
            self._query_tokens += prompt_tokens
            self._hit_tokens += output.cached_tokens
        if output.stop is not None:
            self.ended(output.run_id)

    def ended(self, run_id: str) -> None:
        del self._tokens[run_id]
        self._prompts.pop(run_id, None)

    def stats(self, kv_tokens: int) -> EngineStats:
        tokens = self._tokens.copy()  # at once: other threads ask while this one steps
        filled = sum(count for run_id, count in tokens.items() if run_id not in self._prompts)
        return EngineStats(
            running=len(self._tokens) - len(self._prompts),
            waiting=len(self._prompts),
            kv_usage=min(1.0, filled / kv_tokens),
            prefix_cache_hit_tokens=self._hit_tokens,
            prefix_cache_query_tokens=self._query_tokens,
        )


def _load(settings: VllmSettings) -> Any:
    """Make vLLM's synchronous engine; the heavy import happens here."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    on_cpu = settings.device == "cpu"
    memory = (
        {"kv_cache_memory_bytes": settings.kv_cache_bytes}
        if on_cpu
        else {"gpu_memory_utilization": settings.gpu_memory_share}
    )
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(settings.model_path),
            dtype=settings.dtype,
            max_model_len=settings.context_tokens,
            max_num_seqs=settings.runs_max,
            max_num_batched_tokens=settings.step_tokens,
            block_size=settings.block_tokens,
            enable_prefix_caching=True,
            enable_chunked_prefill=True,  # bounds the time of a step
            scheduling_policy="priority",
            enforce_eager=on_cpu,  # compiling costs minutes at every start and gains little here
            disable_log_stats=True,
            use_tqdm_on_load=False,
            worker_extension_cls="engine_workers.engine.vllm_worker.CountedDrawsExtension",
            **memory,
        )
    )


def _sampling_params(sampling: Sampling, seed: int) -> Any:
    """Translate; raises ValueError where vLLM refuses a value."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        stop=list(sampling.stop),
        ignore_eos=sampling.ignore_eos,
        seed=seed % (1 << 63),  # -1 would mean unseeded to vLLM
        detokenize=bool(sampling.stop),  # text is the readers' business; only stop strings need it
        output_kind=RequestOutputKind.DELTA,
    )


def _step_output(result: Any) -> StepOutput:
    choice = result.outputs[0]
    return StepOutput(
        run_id=result.request_id,
        choice=choice.index,
        token_ids=tuple(choice.token_ids),
        cached_tokens=result.num_cached_tokens or 0,
        stop=_stop(choice.finish_reason, choice.stop_reason) if result.finished else None,
    )


def _stop(finish_reason: str | None, stop_reason: int | str | None) -> Stop:
    """Translate why a run ended. Raises EngineDead where vLLM gave the run up."""
    if finish_reason == "length":
        return Stop(reason=StopReason.LENGTH)
    if finish_reason != "stop":
        raise EngineDead(f"vLLM gave a run up: {finish_reason}")
    if isinstance(stop_reason, str):
        return Stop(reason=StopReason.STOP_SEQUENCE, stop_sequence=stop_reason)
    return Stop(reason=StopReason.END)
