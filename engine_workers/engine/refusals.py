"""What every engine refuses before anything is started, so that all engines refuse alike.

Owns the checks that need no model: features not built yet, ranges, vocabulary, context window.
Pure; called by each engine's `start`. The gateway has checked the same at its edge: what gets here
comes from an older or broken writer.
"""

from collections.abc import Sequence

from engine_workers.engine.port import EngineRejected, EngineRequest


def refuse_unservable(
    request: EngineRequest, emitted: Sequence[int], *, vocab_size: int, context_tokens: int
) -> None:
    """Return where the request can be served as asked. Raises EngineRejected naming the field."""
    prompt, sampling = request.prompt_token_ids, request.sampling
    if emitted:
        raise EngineRejected("emitted: continuing a reply is not supported yet")
    if sampling.choices != 1:
        raise EngineRejected("choices: more than one is not supported yet")
    if request.grammar is not None:
        raise EngineRejected("grammar: not supported yet")
    if sampling.logprobs is not None:
        raise EngineRejected("logprobs: not supported yet")
    if not prompt:
        raise EngineRejected("prompt_token_ids: at least one token is needed")
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        raise EngineRejected(f"prompt_token_ids: must lie in 0..{vocab_size - 1}")
    if sampling.max_tokens < 1:
        raise EngineRejected("max_tokens: must be at least 1")
    if len(prompt) + sampling.max_tokens > context_tokens:
        raise EngineRejected(f"max_tokens: with the prompt above {context_tokens} tokens")
    if not 0 <= sampling.min_tokens <= sampling.max_tokens:
        raise EngineRejected("min_tokens: must lie between 0 and max_tokens")
    if not sampling.temperature >= 0:
        raise EngineRejected("temperature: must be at least 0")
    if not 0 < sampling.top_p <= 1:
        raise EngineRejected("top_p: must lie above 0 and at most at 1")
    if "" in sampling.stop:
        raise EngineRejected("stop: must not be empty")
