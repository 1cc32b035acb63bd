"""The engine port on vLLM, for CPU and GPU by the same code.

Owns how vLLM is set up and called, and its errors in the port's words. Batching, KV cache, prefix
cache and sampling are vLLM's. The engine is made and stepped in the main thread (another one costs
a second OpenMP pool and 30 % of the speed); `environment.missing_environment` must be empty by
then. Called by `engine_workers.pump`.

A run with `emitted` is a request of vLLM's that carries these tokens as output: to its scheduler
(`vllm_scheduler`), its worker (`vllm_worker`) and, here, to the detokenizer that finds stop
strings.
"""

from collections.abc import Sequence
from typing import Any

from engine_workers.engine.continuation import stop_of_emitted
from engine_workers.engine.environment import VllmSettings
from engine_workers.engine.port import (
    EngineDead,
    EngineRejected,
    EngineRequest,
    EngineStats,
    StepOutput,
)
from engine_workers.engine.refusals import refuse_unservable
from engine_workers.engine.tally import Tally
from engine_workers.engine.vllm_translation import eos_ids_of, sampling_params, step_output
from schemas.replies import Stop
from schemas.requests import Sampling

_WARM_UP_ID = "warm-up"
_SCHEDULER = "engine_workers.engine.vllm_scheduler.make_scheduler"


class VllmEngine:
    """Implements `engine_workers.engine.port.Engine`. Loading takes 10 to 30 s.

    Raises EngineDead from its constructor where vLLM cannot load the model.
    """

    def __init__(self, settings: VllmSettings) -> None:
        self._settings = settings
        self._tally = Tally()
        self._whole: list[StepOutput] = []  # continuations of replies that were whole already
        try:
            self._engine = _load(settings)
            self._eos_ids = eos_ids_of(self._engine)
            # Where they run: the scheduler is ours on the CPU only, workers tell for themselves.
            self._continues = settings.device == "cpu" and all(
                self._engine.collective_rpc("continues_runs")
            )
            if settings.device == "cpu":
                self._engine.collective_rpc("end_groups")
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
            continues=self._continues,
        )
        prompt = {
            "type": "token",
            "prompt_token_ids": list(request.prompt_token_ids),
            # Into the hash of the first block, which those of all others follow from.
            "cache_salt": request.cache_salt,
        }
        try:
            vllm_id = self._engine.add_request(
                request.run_id,
                prompt,
                sampling_params(request, emitted),
                priority=request.priority,
            )
        except (ValueError, TypeError) as error:  # vLLM's own checks of parameters
            raise EngineRejected(str(error)) from error
        except Exception as error:
            raise EngineDead(f"vLLM cannot take a request: {error!r}") from error
        self._tally.started(request, len(emitted))
        if emitted:
            self._catch_up(request, vllm_id, emitted)

    def abort(self, run_id: str) -> None:
        """Drop a run; unknown ids are ignored. Raises EngineDead."""
        self._whole = [output for output in self._whole if output.run_id != run_id]
        if not self._tally.knows(run_id):
            return
        try:
            self._engine.abort_request([run_id])
        except Exception as error:
            raise EngineDead(f"vLLM cannot abort a request: {error!r}") from error
        self._tally.ended(run_id)

    def step(self) -> list[StepOutput]:
        """Run one step of all runs. Raises EngineDead."""
        whole, self._whole = self._whole, []
        return whole + (self._step() if self._tally.any() else [])

    def has_work(self) -> bool:
        """Tell whether any run is left."""
        return self._tally.any() or bool(self._whole)

    def stats(self) -> EngineStats:
        """Return current load, by what was started here; shared KV blocks count for each run."""
        return self._tally.stats(self._kv_tokens)

    def forget_prefixes(self) -> None:
        """Empty the prefix cache; for measurements and tests from a cold one, without runs."""
        self._engine.reset_prefix_cache()

    def close(self) -> None:
        """End the engine core and free its memory."""
        self._engine.engine_core.shutdown()

    def _step(self) -> list[StepOutput]:
        try:
            results = self._engine.step()
        except Exception as error:
            raise EngineDead(f"a step of vLLM failed: {error!r}") from error
        outputs = []
        for result in results:
            if not self._tally.knows(result.request_id):
                continue
            output = step_output(result, self._tally.top_logprobs(result.request_id))
            self._tally.made(output, result.num_cached_tokens or 0)
            if output.token_ids or output.stop or output.refused:
                outputs.append(output)
        return outputs

    def _catch_up(self, request: EngineRequest, vllm_id: str, emitted: Sequence[int]) -> None:
        """Show the tokens to the run's detokenizer; end the run where they are a whole reply.

        Raises EngineRejected (the run is dropped), EngineDead.
        """
        detokenizer = self._engine.output_processor.request_states[vllm_id].detokenizer

        def match_stop(token_id: int) -> str | None:
            matched: str | None = detokenizer.update([token_id], False)
            return matched

        try:
            stop = stop_of_emitted(emitted, request.sampling, self._eos_ids, match_stop)
        except EngineRejected:
            self.abort(request.run_id)
            raise
        if stop is not None:
            self.abort(request.run_id)
            self._whole.append(_nothing_more(request, stop))

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
        self._tally = Tally()


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
            structured_outputs_config={"backend": "guidance"},
            worker_extension_cls="engine_workers.engine.vllm_worker.CountedDrawsExtension",
            scheduler_cls=_SCHEDULER,
            **memory,
        )
    )


def _nothing_more(request: EngineRequest, stop: Stop) -> StepOutput:
    return StepOutput(run_id=request.run_id, choice=0, token_ids=(), cached_tokens=0, stop=stop)
