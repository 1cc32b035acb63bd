"""The engine port: what a worker needs of an inference engine.

Adapters: `vllm_engine.py` (CPU and GPU, same code) and `scripted_engine.py` (deterministic;
simulation and load tests of everything but the engine). One contract suite in
`tests/contract/engine_suite.py` runs on both. All calls come from the one thread that made the
engine; nothing here is async.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from schemas.replies import Stop, TokenLogprob
from schemas.requests import Sampling


class EngineRejected(Exception):
    """The engine cannot serve this request as asked; nothing was started. Closed as failed."""


class EngineDead(Exception):
    """The engine is beyond recovery; all its requests are lost and the process must exit."""


class EngineRequest(Struct, frozen=True, kw_only=True):
    """What to generate. `run_id` names this run: a fresh one per attempt, never reused.

    A run is one choice: `sampling.choices` is its worker's business, the seed is the choice's own.
    """

    run_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    priority: int = 0
    """Lower runs first among waiting requests."""
    grammar: str | None = None
    """As `RequestAccepted.grammar`."""
    cache_salt: str | None = None
    """A run finds only those prefixes in the cache that runs of the same salt put there, so that
    neither counts nor times tell what others asked. Tokens do not depend on it."""


class StepOutput(Struct, frozen=True, kw_only=True):
    """New tokens of one choice of one run after one step."""

    run_id: str
    choice: int
    token_ids: tuple[int, ...]
    cached_tokens: int
    """Prompt tokens found in the prefix cache, as measured by the engine; `emitted` never counts.
    The same in all outputs of a run."""
    stop: Stop | None = None
    """Set on the choice's last output, which alone may be without tokens."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """By token, where the request asked; under a grammar, among the tokens that it allows."""
    refused: str | None = None
    """Set instead of `stop` where the engine found out only after `start` that it cannot serve the
    run as asked (its grammar does not compile, refuses `emitted` or grows too complex): the run
    has ended, as if `start` had raised EngineRejected with this message."""


class EngineStats(Struct, frozen=True, kw_only=True):
    """Load of the engine, for fleet-status and metrics."""

    running: int
    waiting: int
    kv_usage: float
    """Share of KV blocks in use, 0..1."""
    prefix_cache_hit_tokens: int
    prefix_cache_query_tokens: int


class Engine(Protocol):
    """Continuous batching behind four calls."""

    def start(self, request: EngineRequest, emitted: Sequence[int]) -> None:
        """Add a run; its tokens come from later steps.

        `emitted` are all output tokens accepted so far, in order, from earlier attempts at the same
        request: prompt, sampling, seed and grammar are the original ones, max_tokens and min_tokens
        not reduced. The run continues as if it had made these tokens itself: they count as output
        (penalties, min_tokens, max_tokens, position of the random draws), stop strings match over
        the seam, a grammar stands behind them. Steps return only what comes after them.
        Run alone and in float32, tokens and stop are those of an undisturbed run; in bfloat16
        rounding may differ, since what was decoded is prefilled now.

        Where `emitted` is a whole reply already (it ends with an end token or completes a stop
        string, or there are max_tokens of it), the next step returns one output without tokens and
        with the stop that the undisturbed run had.

        Raises: EngineRejected (nothing started): a value is out of range; `emitted` goes on after
        its own end, or holds more than max_tokens; or this engine cannot carry what the run needs
        over (never a silently different reply). EngineDead.
        """

    def abort(self, run_id: str) -> None:
        """Drop a run at once; no output of it is returned by later steps. Unknown ids are
        ignored."""

    def step(self) -> list[StepOutput]:
        """Run one step of all runs; return new tokens, at most one output per run and choice.

        Returns an empty list at once where nothing is to do. A step takes at most 0.5 s by
        chunked prefill. Raises EngineDead.
        """

    def has_work(self) -> bool:
        """Tell whether a step would do anything."""

    def stats(self) -> EngineStats:
        """Return current load; cheap."""

    def close(self) -> None:
        """Release memory and end child processes."""
