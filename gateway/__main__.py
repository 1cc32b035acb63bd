"""Composition root of a gateway: `python -m gateway`.

Reads the environment, builds adapters and `Deps`, serves at once (529 until ready) unless another
gateway can serve meanwhile, connects in the background, drains on SIGTERM or SIGINT. SIGINT may
come twice; the second changes nothing.
"""

import asyncio
import contextlib
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
_LOOK_EVERY_S = 0.02
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
        public, own = _public_socket(config), _own_sockets(config)
    except OSError as error:
        log.error("cannot listen", host=config.host, port=config.port, error=str(error))
        return 1
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    gateway = Gateway(config, log, on_death=stopping.set)
    server = HttpServer(build_app(gateway.deps), own)
    await server.start()
    for listener in own:
        log.info("listening", address=_address(listener))
    gateway.start()
    gc.freeze()  # what stands now stays: looking through it took a body of many parts 15 ms
    if public is not None:
        if config.gateways > 1:  # a connection goes to whoever takes it first
            await _wait_ready(gateway, stopping, limits.GATEWAY_JOIN_MS / 1000)
        if not stopping.is_set():
            await server.accept(public)
            log.info("listening", address=_address(public))
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


async def _wait_ready(gateway: Gateway, stopping: asyncio.Event, within_s: float) -> None:
    """Return once requests can be served, or this process is to stop, or the bound has passed.

    Past the bound a clear refusal is better than a connection that nobody takes.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while gateway.unready() is not None and not stopping.is_set():  # noqa: ASYNC110  # views
                await asyncio.sleep(_LOOK_EVERY_S)


def _public_socket(config: Config) -> socket.socket | None:
    """Return the inherited listening socket that all gateways share."""
    if config.listen_fd is None:
        return None
    inherited = socket.socket(fileno=config.listen_fd)
    inherited.setblocking(False)
    return inherited


def _own_sockets(config: Config) -> list[socket.socket]:
    """Return what only this gateway listens on. Raises OSError."""
    return [listen(config.host, config.port)] if config.port or config.listen_fd is None else []


def _address(listener: socket.socket) -> str:
    return ":".join(map(str, listener.getsockname()[:2]))


if __name__ == "__main__":
    sys.exit(main())
