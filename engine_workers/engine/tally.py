"""What the vLLM adapter knows of its runs without asking vLLM.

Owns which runs are in the engine, and the counts behind `EngineStats`. Read by other threads while
the engine steps. Called by `vllm_engine`.
"""

from engine_workers.engine.port import EngineRequest, EngineStats, StepOutput


class Tally:
    """Runs that the engine has now, and totals since it was made."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}  # by run id: prompt and output
        self._unfilled: dict[str, int] = {}  # by run id, until its first output: to be prefilled
        self._top_logprobs: dict[str, int] = {}  # by run id, where it asked for any
        self._hit_tokens = 0
        self._query_tokens = 0

    def knows(self, run_id: str) -> bool:
        """Tell whether the run is in the engine."""
        return run_id in self._tokens

    def top_logprobs(self, run_id: str) -> int:
        """Return how many of a run's most likely tokens are reported at each position."""
        return self._top_logprobs.get(run_id, 0)

    def any(self) -> bool:
        """Tell whether any run is in the engine."""
        return bool(self._tokens)

    def started(self, request: EngineRequest, emitted_tokens: int) -> None:
        """Count a run that has just been added."""
        tokens = len(request.prompt_token_ids) + emitted_tokens
        self._tokens[request.run_id] = self._unfilled[request.run_id] = tokens
        if request.sampling.logprobs:
            self._top_logprobs[request.run_id] = request.sampling.logprobs

    def made(self, output: StepOutput, hit_tokens: int) -> None:
        """Count an output; `hit_tokens` of what the run had to prefill were cached."""
        self._tokens[output.run_id] += len(output.token_ids)
        unfilled = self._unfilled.pop(output.run_id, None)
        if unfilled is not None:
            self._query_tokens += unfilled
            self._hit_tokens += hit_tokens
        if output.stop is not None or output.refused is not None:
            self.ended(output.run_id)

    def ended(self, run_id: str) -> None:
        """Forget a run."""
        del self._tokens[run_id]
        self._unfilled.pop(run_id, None)
        self._top_logprobs.pop(run_id, None)

    def stats(self, kv_tokens: int) -> EngineStats:
        """Return current load of an engine whose KV cache holds `kv_tokens`."""
        tokens = self._tokens.copy()  # at once: other threads ask while this one steps
        filled = sum(count for run_id, count in tokens.items() if run_id not in self._unfilled)
        return EngineStats(
            running=len(self._tokens) - len(self._unfilled),
            waiting=len(self._unfilled),
            kv_usage=min(1.0, filled / kv_tokens),
            prefix_cache_hit_tokens=self._hit_tokens,
            prefix_cache_query_tokens=self._query_tokens,
        )
