"""The engine port: what a worker needs of an inference engine.

Adapters: `vllm_engine.py` (CPU and GPU, same code) and `scripted_engine.py` (deterministic;
simulation and load tests of everything but the engine). One contract suite in
`tests/contract/engine_suite.py` runs on both. All calls come from the one thread that made the
engine; nothing here is async.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from schemas.replies import Stop
from schemas.requests import Sampling


class EngineRejected(Exception):
    """The engine cannot serve this request as asked; nothing was started. Closed as failed."""


class EngineDead(Exception):
    """The engine is beyond recovery; all its requests are lost and the process must exit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """What to generate. `run_id` names this run: a fresh one per attempt, never reused."""

    run_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    priority: int = 0
    """Lower runs first among waiting requests."""
    grammar: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """New tokens of one choice of one run after one step."""

    run_id: str
    choice: int
    token_ids: tuple[int, ...]
    cached_tokens: int
    """Prompt tokens found in the prefix cache, as measured by the engine."""
    stop: Stop | None = None
    """Set on the choice's last output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
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

        `emitted` are output tokens accepted from an earlier attempt; the run continues after them
        as if it had made them itself (an engine that cannot carry a feature over raises
        EngineRejected).

        Raises: EngineRejected (nothing started), EngineDead.
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
