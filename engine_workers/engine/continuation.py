"""When a reply is over, for tokens that are made now and for tokens that an earlier attempt made.

Owns the order in which an end token, a stop token, a stop string and the length end a run (vLLM's
order), and the judgement of `emitted` by it. Pure; called by each engine's `start`, and by the
scripted engine for each token.
"""

from collections.abc import Callable, Collection, Sequence

from engine_workers.engine.port import EngineRejected
from schemas.replies import Stop, StopReason
from schemas.requests import Sampling

MatchStop = Callable[[int], str | None]
"""Takes a run's output tokens one by one; returns the stop string that a token completes."""


def stop_after(
    token_id: int, made: int, sampling: Sampling, eos_ids: Collection[int], match_stop: MatchStop
) -> Stop | None:
    """Return why a run ends with this token, None where it goes on.

    Args:
        made: Output tokens so far, this one included.
    """
    if token_id in eos_ids and not sampling.ignore_eos:
        return Stop(reason=StopReason.END)
    if token_id in sampling.stop_token_ids:
        return Stop(reason=StopReason.END)
    matched = match_stop(token_id)
    if matched is not None:
        return Stop(reason=StopReason.STOP_SEQUENCE, stop_sequence=matched)
    return Stop(reason=StopReason.LENGTH) if made >= sampling.max_tokens else None


def stop_of_emitted(
    emitted: Sequence[int], sampling: Sampling, eos_ids: Collection[int], match_stop: MatchStop
) -> Stop | None:
    """Return why `emitted` is a whole reply already, None where it is the beginning of one.

    Feeds every token to `match_stop`, which thereby stands where the earlier attempt's stood.

    Raises: EngineRejected where tokens stand after the end: no attempt made them.
    """
    for index, token_id in enumerate(emitted):
        stop = stop_after(token_id, index + 1, sampling, eos_ids, match_stop)
        if stop is None:
            continue
        if index + 1 < len(emitted):
            raise EngineRejected(f"emitted: goes on after its end ({stop.reason} at token {index})")
        return stop
    return None
