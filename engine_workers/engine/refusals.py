"""What every engine refuses before anything is started, so that all engines refuse alike.

Owns the checks that need no model: ranges, vocabulary, context window, what a grammar does not go
with, and a continuation where the engine has none. Pure; called by each engine's `start`. The
gateway has checked the same at its edge: what gets here comes from an older or broken writer.
"""

from collections.abc import Sequence

from engine_workers.engine.port import EngineRejected, EngineRequest
from schemas import limits
from schemas.requests import Sampling


def refuse_unservable(
    request: EngineRequest,
    emitted: Sequence[int],
    *,
    vocab_size: int,
    context_tokens: int,
    continues: bool = True,
) -> None:
    """Return where the request can be served as asked. Raises EngineRejected naming the field.

    Args:
        continues: Whether this engine can continue a reply that an earlier attempt began.
    """
    prompt, sampling = request.prompt_token_ids, request.sampling
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
    _refuse_ranges(sampling)
    _refuse_tokens(sampling, vocab_size)
    if request.grammar is not None and (sampling.min_tokens or sampling.ignore_eos):
        raise EngineRejected("min_tokens, ignore_eos: a grammar alone decides where a reply ends")
    if emitted and not continues:
        raise EngineRejected("emitted: this engine cannot continue a reply with its model runner")
    if len(emitted) > sampling.max_tokens:
        raise EngineRejected(f"emitted: more than max_tokens, {sampling.max_tokens}")
    if emitted and (min(emitted) < 0 or max(emitted) >= vocab_size):
        raise EngineRejected(f"emitted: must lie in 0..{vocab_size - 1}")


def _refuse_ranges(sampling: Sampling) -> None:
    """Raise EngineRejected where a value is out of its range; NaN is out of every range."""
    if not sampling.temperature >= 0:
        raise EngineRejected("temperature: must be at least 0")
    if not 0 < sampling.top_p <= 1:
        raise EngineRejected("top_p: must lie above 0 and at most at 1")
    if sampling.top_k < 0:
        raise EngineRejected("top_k: must be at least 0")
    if not 0 <= sampling.min_p <= 1:
        raise EngineRejected("min_p: must lie between 0 and 1")
    if not (-2 <= sampling.presence_penalty <= 2 and -2 <= sampling.frequency_penalty <= 2):
        raise EngineRejected("presence_penalty, frequency_penalty: must lie between -2 and 2")
    if not 0 < sampling.repetition_penalty <= 2:
        raise EngineRejected("repetition_penalty: must lie above 0 and at most at 2")
    if "" in sampling.stop:
        raise EngineRejected("stop: must not be empty")
    if not all(word.strip() for word in sampling.bad_words):
        raise EngineRejected("bad_words: must not be empty")
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= limits.TOP_LOGPROBS_MAX:
        raise EngineRejected(f"logprobs: must lie between 0 and {limits.TOP_LOGPROBS_MAX}")


def _refuse_tokens(sampling: Sampling, vocab_size: int) -> None:
    """Raise EngineRejected where a token is outside the vocabulary, or its bias out of range."""
    if not all(0 <= token_id < vocab_size for token_id in sampling.stop_token_ids):
        raise EngineRejected(f"stop_token_ids: must lie in 0..{vocab_size - 1}")
    for each in sampling.logit_bias:
        if not 0 <= each.token_id < vocab_size:
            raise EngineRejected(f"logit_bias: tokens must lie in 0..{vocab_size - 1}")
        if not -100 <= each.bias <= 100:
            raise EngineRejected("logit_bias: must lie between -100 and 100")
