"""Composition root of a gateway: `python -m gateway`.

Reads the environment, builds adapters and `Deps`, serves at once (529 until ready), connects in the
background, drains on SIGTERM or SIGINT. SIGINT may come twice; the second changes nothing.
"""

import asyncio
import gc
import os
import signal
import socket
import sys

import structlog
import uvloop

from gateway.app import build_app
from gateway.assembly import Gateway
from gateway.garbage import collect_young_only
from gateway.server import HttpServer, listen
from infra.config import Config, load
from infra.errors import ConfigError
from infra.logs import configure
from schemas import limits

_SWITCH_S = 0.001
"""A thread that works on a large body lets the event loop have its turn after this long."""
_YOUNG_OBJECTS = 10_000
"""Objects made before the youngest are looked through: a few hundred requests' worth, since nearly
all of them are gone by then without being looked at."""


def main() -> int:
    """Run a gateway until it is told to stop; return its exit status."""
    try:
        config = load(os.environ)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    configure(config)
    sys.setswitchinterval(_SWITCH_S)
    collect_young_only(_YOUNG_OBJECTS)
    # Waking one of the library's threads costs more than a prompt; many are made in our own.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return uvloop.run(_run(config))


async def _run(config: Config) -> int:
    log = structlog.get_logger("gateway").bind()  # once: a proxy would make one for every line
    try:
        sockets = _sockets(config)
    except OSError as error:
        log.error("cannot listen", host=config.host, port=config.port, error=str(error))
        return 1
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    gateway = Gateway(config, log, on_death=stopping.set)
    server = HttpServer(build_app(gateway.deps), sockets)
    await server.start()
    log.info("listening", addresses=[":".join(map(str, s.getsockname()[:2])) for s in sockets])
    gateway.start()
    gc.freeze()  # what stands now stays: looking through it took a body of many parts 15 ms
    await stopping.wait()
    await _drain(gateway, server)
    log.info("stopped")
    return 1 if gateway.died else 0


async def _drain(gateway: Gateway, server: HttpServer) -> None:
    """Accept no more, let running streams finish within the bound, then fail the rest and leave.

    Requests that were on their way to this very process are answered still: behind a shared socket
    new connections go to others, so that a restart refuses nobody.
    """
    await server.leave(limits.GATEWAY_LINGER_MS / 1000)
    gateway.begin_drain()
    await server.stop()
    await gateway.stop()


def _sockets(config: Config) -> list[socket.socket]:
    """Return the inherited public socket and the gateway's own. Raises OSError."""
    sockets = []
    if config.listen_fd is not None:
        inherited = socket.socket(fileno=config.listen_fd)
        inherited.setblocking(False)
        sockets.append(inherited)
    if config.port or config.listen_fd is None:
        sockets.append(listen(config.host, config.port))
    return sockets


if __name__ == "__main__":
    sys.exit(main())
