"""The process around the embedded ClickHouse: opens the engine, serves, drains, closes in reverse
order.

Owns the listening socket and the order of start and stop. Called by `infra/clickhouse/__main__.py`.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import structlog
import uvicorn

from infra.clickhouse.front.app import Account, Front
from infra.clickhouse.front.engine import Engine
from infra.config import Config
from infra.errors import StartupError
from infra.health import HealthServer
from infra.metrics import Metrics
from infra.ports import Entropy

_DRAIN_S = 10
_BACKLOG = 128
_log = structlog.get_logger(__name__)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: they kill the process after a clean stop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(config: Config, entropy: Entropy, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then finish what runs.

    Raises: StartupError where the folder or the port is taken.
    """
    listener = _listen(config.clickhouse_url)
    with contextlib.closing(listener):
        folder = config.data_dir / "clickhouse"
        engine = await asyncio.to_thread(Engine.open, folder, config.clickhouse_database)
        account = Account(
            user=config.clickhouse_user,
            password=config.clickhouse_password,
            database=config.clickhouse_database,
        )
        front = Front(engine, account, entropy)
        health = HealthServer(
            "127.0.0.1", config.health_port, Metrics(), ready=lambda: True, health=lambda: True
        )
        try:
            if config.health_port:
                await health.start()
            await _run(front, listener, stop, folder, engine.version)
        finally:
            await health.stop()
            front.close()
            engine.close()


async def _run(
    front: Front, listener: socket.socket, stop: asyncio.Event, folder: Path, version: str
) -> None:
    server = _Server(
        uvicorn.Config(
            front.app(),
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_DRAIN_S,
            timeout_keep_alive=60,  # clients' pools keep connections for longer than 5 s
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    host, port = listener.getsockname()[:2]
    _log.info("clickhouse ready", host=host, port=port, folder=str(folder), engine=version)
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stopping.cancel()
    await serving
    _log.info("clickhouse stopped")


def _listen(url: str) -> socket.socket:
    """Bind the address of `url`, before the engine is opened. Raises StartupError."""
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 8123
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartupError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener
