"""What runs inside vLLM's scheduler: a run that begins after output of an earlier attempt.

To vLLM such a run looks as if it had been preempted: prompt and limits are the original ones, the
carried tokens count as output (max_tokens, min_tokens, end of the context) and are part of what is
prefilled and looked up in the prefix cache, and its grammar has accepted them. The per-request
state of the worker (penalties, draws) is `vllm_worker`'s, stop strings are `vllm_engine`'s part.
Owns also which scheduler vLLM gets, and its grammars with it. Loaded by `scheduler_cls`.
"""

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.request import RequestStatus

from engine_workers.engine.carried_tokens import carried_by
from engine_workers.engine.vllm_grammar import GuidedBackend


def make_scheduler(**parts: Any) -> Scheduler:
    """Return what vLLM schedules by; called where it would call the class of its scheduler.

    A GPU keeps vLLM's own, which overlaps scheduling and computing; runs do not continue there.
    """
    config, structured_outputs = parts["vllm_config"], parts["structured_output_manager"]
    structured_outputs.backend = GuidedBackend(
        config,
        tokenizer=structured_outputs.tokenizer,
        vocab_size=config.model_config.get_vocab_size(),
    )
    if config.device_config.device_type == "cpu":
        return ContinuingScheduler(**parts)
    return (AsyncScheduler if config.scheduler_config.async_scheduling else Scheduler)(**parts)


class ContinuingScheduler(Scheduler):  # type: ignore[misc] # vllm: no types
    """vLLM's synchronous scheduler, for requests that may carry tokens; leaves others alone."""

    def add_request(self, request: Any) -> None:
        """Queue a request, its carried tokens as output."""
        carried = carried_by(request.sampling_params)
        if carried:
            request.append_output_token_ids(carried)
            # With these set, vLLM asserts that the cache holds no more than the prompt.
            request.prefill_stats = None
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Plan a step; say of continued requests how much of prompt and carried was cached."""
        plan = super().schedule(*args, **kwargs)
        for new in plan.scheduled_new_reqs:
            carried = carried_by(new.sampling_params)
            if carried:
                stats = PrefillStats()
                stats.set(new.prompt_len + len(carried), new.num_computed_tokens, 0)
                self.requests[new.req_id].prefill_stats = stats
        return plan

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        """Let a grammar that has just been compiled accept the carried tokens first."""
        before = request.status
        ready: bool = super()._handle_blocked_waiting_request(request)
        compiled = ready and before == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        carried = carried_by(request.sampling_params) if compiled else []
        # The manager, not the grammar itself: a grammar may begin only after the reasoning.
        if not carried or self.structured_output_manager.accept_tokens(request, carried):
            return ready
        request.status = before
        self.grammar_compile_error_reqs.add(request.request_id)  # ends this request with an error
        return False
