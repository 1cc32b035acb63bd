"""`python -m infra.clickhouse`: the embedded ClickHouse as a process (composition root)."""

import asyncio
import os
import signal
import sys
import time

import structlog

from infra import config as configuration
from infra import logs
from infra.clickhouse import server
from infra.errors import ConfigError, StartupError
from infra.system import SystemEntropy


async def _main(config: configuration.Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await server.serve(config, SystemEntropy(), stop)


def main() -> int:
    """Run until a signal; return the exit code."""
    # The engine takes the process's zone as the server's; every DateTime of ours is UTC.
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        config = configuration.load(os.environ)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    logs.configure(config)
    try:
        asyncio.run(_main(config))
    except StartupError as error:
        structlog.get_logger(__name__).error("clickhouse cannot start", reason=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
