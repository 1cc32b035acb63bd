"""`python -m streams.metering`: the usage sink as a process (composition root)."""

import asyncio
import os
import signal
import sys

import structlog
import uvloop

from infra.config import Config, load
from infra.errors import ConfigError
from infra.logs import configure
from infra.system import SystemClock, SystemEntropy
from streams.metering.process import Metering


def main() -> int:
    """Run until SIGTERM or SIGINT; return the exit status."""
    try:
        config = load(os.environ)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    configure(config)
    try:
        uvloop.run(_main(config))
    except Exception:
        structlog.get_logger(__name__).exception("metering failed")
        return 1
    return 0


async def _main(config: Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Metering(config, SystemClock(), SystemEntropy(), stop).run()


if __name__ == "__main__":
    sys.exit(main())
