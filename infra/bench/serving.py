"""The three systems of `millstream bench serve`, behind one question: run this closed loop.

(a) the engine alone in a process, (b) vLLM's own OpenAI server, tuned and as it comes, (c) the
whole platform. Owns their start and settings; the same model, precision and bounds for all.
"""

import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from infra.bench.accounts import cpu_between, sample
from infra.bench.children import Child, LoadClient, start_module
from infra.bench.peers import free_port, wait_answering
from infra.bench.plan import EngineAnswer, EngineQuestion, LoadPlan
from infra.bench.platform import RunningPlatform, clean_environ, running_platform
from infra.bench.prompts import body
from infra.bench.statistics import percentile
from infra.bench.surroundings import Surroundings
from infra.config import PREFIX, Config

__all__ = ["Loop", "Loops", "PlatformLoops", "bare_engine", "platform_loops", "vllm_server"]

_READY_WITHIN_S = 240.0
_ANSWER_WITHIN_S = 600.0
_BLOCK_TOKENS = 32
_KV_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What one closed loop met; times in milliseconds."""

    tokens_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    pace_p50_ms: float
    """Inter-token time: median over replies of their mean."""
    gap_p99_ms: float
    cpu_s_per_1000: dict[str, float]
    """CPU seconds per 1,000 tokens by process."""
    valid: bool = True


class Loops(Protocol):
    """A system under test."""

    async def run(self, prompts: list[str], concurrency: int, tokens: int) -> Loop:
        """Answer all prompts, `concurrency` at a time."""

    def pids(self) -> dict[str, int]:
        """Return its processes by name."""


class _Engine:
    """The engine alone."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def pids(self) -> dict[str, int]:
        return {"engine": self._child.pid}

    async def run(self, prompts: list[str], concurrency: int, tokens: int) -> Loop:
        question = EngineQuestion(prompts=tuple(prompts), concurrency=concurrency, tokens=tokens)
        answer = await self._child.ask(question, EngineAnswer, _ANSWER_WITHIN_S)
        first = [reply.first_s for reply in answer.replies]
        gaps = [gap for reply in answer.replies for gap in reply.gaps_s]
        pace = [sum(reply.gaps_s) / max(1, len(reply.gaps_s)) for reply in answer.replies]
        made = len(prompts) * tokens
        return Loop(
            tokens_per_s=made / answer.wall_s,
            ttft_p50_ms=1e3 * percentile(first, 0.5),
            ttft_p99_ms=1e3 * percentile(first, 0.99),
            pace_p50_ms=1e3 * percentile(pace, 0.5),
            gap_p99_ms=1e3 * percentile(gaps, 0.99),
            cpu_s_per_1000={"engine": 1_000 * answer.cpu_s / made},
        )


class _Http:
    """A server behind the load client."""

    def __init__(
        self, load: LoadClient, port: int, model: str, headers: Mapping[str, str], pids: Any
    ) -> None:
        """Take the server's address, and what tells its processes' ids by name."""
        self._load, self._port, self._model = load, port, model
        self._headers = dict(headers)
        self.pids = pids

    async def run(
        self, prompts: list[str], concurrency: int, tokens: int, keys: tuple[str, ...] = ()
    ) -> Loop:
        """Answer all prompts, `concurrency` at a time, with an idempotency key each or none."""
        plan = LoadPlan(
            host="127.0.0.1",
            port=self._port,
            path="/v1/chat/completions",
            headers=self._headers,
            bodies=tuple(
                json.dumps(body(self._model, text, tokens, stream=True)) for text in prompts
            ),
            keys=keys,
            mode="closed",
            tokens=tokens,
            concurrency=concurrency,
            requests=len(prompts),
        )
        before = sample(self.pids())
        result = await self._load.run(plan, _ANSWER_WITHIN_S)
        cpu = cpu_between(before, sample(self.pids()))
        made = result.completed * tokens
        cpu["client"] = result.own_cpu_s
        return Loop(
            tokens_per_s=made / result.wall_s,
            ttft_p50_ms=1e3 * (result.first.p50 or 0.0),
            ttft_p99_ms=1e3 * (result.first.p99 or 0.0),
            pace_p50_ms=1e3 * (result.pace.p50 or 0.0),
            gap_p99_ms=1e3 * (result.gaps.p99 or 0.0),
            cpu_s_per_1000={name: 1_000 * used / max(1, made) for name, used in cpu.items()},
            valid=result.is_valid and not result.failures,
        )


class PlatformLoops(_Http):
    """The whole platform behind the load client."""

    def __init__(self, load: LoadClient, platform: RunningPlatform) -> None:
        """Take a running platform."""
        super().__init__(load, platform.port, platform.model, platform.headers, platform.pids)
        self.platform = platform


@asynccontextmanager
async def bare_engine(surroundings: Surroundings, config: Config) -> AsyncIterator[Loops]:
    """Run the engine alone, made as a worker makes it, until the block ends."""
    own = {
        f"{PREFIX}ENGINE": config.engine,
        f"{PREFIX}DTYPE": config.dtype,
        f"{PREFIX}RUNS_MAX": str(config.runs_max),
        f"{PREFIX}MODEL_PATH": str(config.model_path),
        f"{PREFIX}CONTEXT_TOKENS": str(config.context_tokens),
    }
    environ = {**clean_environ(surroundings.environ), **own}
    child = await start_module("engine", "engine_workers.bench", environ, surroundings.folder)
    try:
        await child.read_line(_READY_WITHIN_S)
        yield _Engine(child)
    finally:
        await child.stop()


@asynccontextmanager
async def vllm_server(
    surroundings: Surroundings, config: Config, load: LoadClient, *, tuned: bool
) -> AsyncIterator[Loops]:
    """Run vLLM's OpenAI server until the block ends.

    `tuned` adds what made it fastest here: Intel's OpenMP with a short block time, unbound threads
    on all cores. Without it vLLM's own defaults stand.
    """
    port = free_port()
    name = "vllm-tuned" if tuned else "vllm-default"
    environ = {**clean_environ(surroundings.environ), **_vllm_environ(tuned)}
    arguments = (
        *("--model", str(config.model_path), "--served-model-name", "model"),
        *("--host", "127.0.0.1", "--port", str(port), "--enforce-eager"),
        *("--dtype", config.dtype, "--max-model-len", str(config.context_tokens)),
        *("--max-num-seqs", str(config.runs_max), "--enable-prefix-caching"),
        *("--block-size", str(_BLOCK_TOKENS), "--kv-cache-memory-bytes", str(_KV_BYTES)),
        *("--disable-log-stats", "--no-enable-log-requests", "--disable-uvicorn-access-log"),
    )
    child = await start_module(
        name, "vllm.entrypoints.openai.api_server", environ, surroundings.folder, arguments
    )
    try:
        await wait_answering(child, f"http://127.0.0.1:{port}/health", _READY_WITHIN_S)
        yield _Http(load, port, "model", {}, lambda: {name: child.pid})
    finally:
        await child.stop()


@asynccontextmanager
async def platform_loops(
    surroundings: Surroundings, config: Config, load: LoadClient
) -> AsyncIterator[PlatformLoops]:
    """Run the whole platform until the block ends."""
    folder = surroundings.folder / "platform"
    folder.mkdir()
    async with running_platform(
        folder,
        surroundings.environ,
        engine=config.engine,
        dtype=config.dtype,
        runs_max=config.runs_max,
        context_tokens=config.context_tokens,
    ) as platform:
        yield PlatformLoops(load, platform)


def _vllm_environ(tuned: bool) -> dict[str, str]:
    own = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    library = Path(sys.prefix) / "lib" / "libiomp5.so"
    if tuned and library.is_file():
        own |= {
            "LD_PRELOAD": str(library),
            "KMP_BLOCKTIME": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
            "TOKENIZERS_PARALLELISM": "false",
        }
    return own
