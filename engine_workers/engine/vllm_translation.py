"""Translates between the port's words and vLLM's: requests in, outputs out.

Owns which of vLLM's parameters each field becomes and what its finish reasons mean. Keeps no state.
Called by `vllm_engine`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from engine_workers.engine.carried_tokens import carrying
from engine_workers.engine.port import EngineDead, EngineRequest, StepOutput
from schemas.grammar import guidance_of
from schemas.replies import Stop, StopReason, TokenLogprob, TopLogprob

_LOGPROB_MIN = -9_999.0
"""Stands for minus infinity, which JSON cannot say; vLLM's servers show the same."""


def sampling_params(request: EngineRequest, emitted: Sequence[int]) -> Any:
    """Return vLLM's SamplingParams. Raises ValueError where a value cannot be had."""
    from vllm.sampling_params import RequestOutputKind

    from engine_workers.engine.vllm_grammar import GuidedSamplingParams, structured_outputs

    sampling, grammar = request.sampling, request.grammar
    return GuidedSamplingParams(
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias={each.token_id: each.bias for each in sampling.logit_bias} or None,
        bad_words=list(sampling.bad_words),
        stop=list(sampling.stop),
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        seed=request.seed % (1 << 63),  # -1 would mean unseeded to vLLM
        logprobs=sampling.logprobs,
        detokenize=bool(sampling.stop),  # text is the readers' business; only stop strings need it
        output_kind=RequestOutputKind.DELTA,
        structured_outputs=None if grammar is None else structured_outputs(guidance_of(grammar)),
        extra_args=carrying(emitted),
    )


def eos_ids_of(engine: Any) -> frozenset[int]:
    """Return the tokens that end a reply: the tokenizer's and those of generation_config.json."""
    from vllm import SamplingParams

    probe = SamplingParams(max_tokens=1)
    probe.update_from_generation_config(
        engine.input_processor.generation_config_fields, engine.renderer.get_eos_token_id()
    )
    return frozenset(probe.all_stop_token_ids)


def step_output(result: Any, top_logprobs: int) -> StepOutput:
    """Return the port's form of one result. Raises EngineDead where vLLM gave the run up.

    Args:
        top_logprobs: How many the run asked for; 0 where it did not.
    """
    choice = result.outputs[0]
    refused = choice.finish_reason == "error"
    return StepOutput(
        run_id=result.request_id,
        choice=choice.index,
        token_ids=tuple(choice.token_ids),
        # Of a continued run the cache may hold more than the prompt.
        cached_tokens=min(result.num_cached_tokens or 0, len(result.prompt_token_ids)),
        stop=_stop(choice) if result.finished and not refused else None,
        refused=_refusal(choice) if refused else None,
        logprobs=_logprobs(choice.logprobs, top_logprobs) if choice.logprobs else None,
    )


def _refusal(choice: Any) -> str:
    """Say what was wrong with a run that ends in an error: only grammars make one do so."""
    if choice.token_ids:
        return "grammar: grew too complex to follow"
    return "grammar: does not compile, or refuses `emitted`"


def _logprobs(positions: Sequence[Mapping[int, Any]], top: int) -> tuple[TokenLogprob, ...]:
    """Return vLLM's log probabilities; each position names the drawn token first, then the top.

    Under a grammar they are those among the tokens that it allows.
    """
    return tuple(
        TokenLogprob(
            logprob=max(next(iter(position.values())).logprob, _LOGPROB_MIN),
            top=tuple(
                TopLogprob(token_id=token_id, logprob=each.logprob)
                for token_id, each in sorted(position.items(), key=_by_rank)[:top]
                if each.logprob > _LOGPROB_MIN
            ),
        )
        for position in positions
    )


def _stop(choice: Any) -> Stop:
    if choice.finish_reason == "length":
        return Stop(reason=StopReason.LENGTH)
    if choice.finish_reason != "stop":
        raise EngineDead(f"vLLM gave a run up: {choice.finish_reason}")
    if isinstance(choice.stop_reason, str):
        return Stop(reason=StopReason.STOP_SEQUENCE, stop_sequence=choice.stop_reason)
    return Stop(reason=StopReason.END)


def _by_rank(item: tuple[int, Any]) -> int:
    rank: int = item[1].rank
    return rank
