"""Translates between the port's words and vLLM's: requests in, outputs out.

Owns which of vLLM's parameters each field becomes and what its finish reasons mean. Keeps no state.
Called by `vllm_engine`.
"""

import json
from collections.abc import Sequence
from typing import Any

from engine_workers.engine.carried_tokens import carrying
from engine_workers.engine.port import EngineDead, EngineRequest, StepOutput
from schemas.replies import Stop, StopReason


def sampling_params(request: EngineRequest, emitted: Sequence[int]) -> Any:
    """Return vLLM's SamplingParams. Raises ValueError where a value cannot be had."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = request.sampling
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
        seed=request.seed % (1 << 63),  # -1 would mean unseeded to vLLM
        detokenize=bool(sampling.stop),  # text is the readers' business; only stop strings need it
        output_kind=RequestOutputKind.DELTA,
        structured_outputs=_structured_outputs(request.grammar),
        extra_args=carrying(emitted),
    )


def _structured_outputs(grammar: str | None) -> Any:
    """Return vLLM's form of a JSON schema. Raises ValueError where it is none."""
    from vllm.sampling_params import StructuredOutputsParams

    if grammar is None:
        return None
    try:
        schema = json.loads(grammar)
    except ValueError as error:
        raise ValueError(f"grammar: not the text of a JSON schema: {error}") from error
    if not isinstance(schema, dict):
        raise ValueError("grammar: a JSON schema must be an object")
    return StructuredOutputsParams(json=schema)


def eos_ids_of(engine: Any) -> frozenset[int]:
    """Return the tokens that end a reply: the tokenizer's and those of generation_config.json."""
    from vllm import SamplingParams

    probe = SamplingParams(max_tokens=1)
    probe.update_from_generation_config(
        engine.input_processor.generation_config_fields, engine.renderer.get_eos_token_id()
    )
    return frozenset(probe.all_stop_token_ids)


def step_output(result: Any) -> StepOutput:
    """Return the port's form of one result. Raises EngineDead where vLLM gave the run up."""
    choice = result.outputs[0]
    refused = choice.finish_reason == "error"
    return StepOutput(
        run_id=result.request_id,
        choice=choice.index,
        token_ids=tuple(choice.token_ids),
        # Of a continued run the cache may hold more than the prompt.
        cached_tokens=min(result.num_cached_tokens or 0, len(result.prompt_token_ids)),
        stop=_stop(choice) if result.finished and not refused else None,
        refused="grammar: does not compile, or refuses `emitted`" if refused else None,
    )


def _stop(choice: Any) -> Stop:
    if choice.finish_reason == "length":
        return Stop(reason=StopReason.LENGTH)
    if choice.finish_reason != "stop":
        raise EngineDead(f"vLLM gave a run up: {choice.finish_reason}")
    if isinstance(choice.stop_reason, str):
        return Stop(reason=StopReason.STOP_SEQUENCE, stop_sequence=choice.stop_reason)
    return Stop(reason=StopReason.END)
