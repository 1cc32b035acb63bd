"""Composition root of a worker: `python -m engine_workers`.

The engine lives in the main thread and is stepped there; uvloop, Kafka and everything else live in
a side thread. The pump hands over between them (design section 2, vLLM).
"""

import gc
import os
import signal
import sys
import threading

import structlog
import uvloop

from engine_workers.bounds import WorkerBounds
from engine_workers.engine.port import EngineDead
from engine_workers.engine_choice import environment_lacks, make_engine
from engine_workers.pump import EnginePump
from engine_workers.side import Side
from infra.config import Config, load
from infra.errors import ConfigError, StartupError
from infra.logs import configure
from infra.system import SystemClock

_YOUNG_OBJECTS = 10_000
_YOUNGER_TURNS = 100
"""Collections of the younger objects before one of all."""


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
        engine = make_engine(config)
        commands_max = WorkerBounds(inflight=config.worker_inflight_max).commands
        pump = EnginePump(engine, side.deliver_threadsafe, clock, commands_max=commands_max)
        _spare_the_collector()
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


def _spare_the_collector() -> None:
    """Look for garbage in circles among what comes from now on, and through all of that seldom.

    With thousands of jobs the whole takes the interpreter longer than many a step.
    """
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, gc.get_threshold()[1], _YOUNGER_TURNS)


def _execute_again_if_needed(config: Config) -> None:
    """Replace this process by one with the environment that vLLM and OpenMP read at load time."""
    missing = environment_lacks(config, os.environ)
    if missing:
        os.execve(
            sys.executable,
            [sys.executable, "-m", "engine_workers", *sys.argv[1:]],
            {**os.environ, **missing},
        )


if __name__ == "__main__":
    sys.exit(main())
