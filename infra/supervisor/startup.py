"""The order in which a platform starts, and what each part needs from those before it.

Owns ports, addresses and the sequence: Kafka and ClickHouse, then topics, tables and keys, then the
processes that use them; the model is prepared meanwhile and workers that load long start early.
Keeping processes running is `nursery.py`'s.
"""

import asyncio
import dataclasses
import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from infra.config import DEFAULT_MODEL, Config
from infra.errors import StartupError
from infra.kafka import embedded
from infra.kafka.properties import Node
from infra.ports import Entropy
from infra.supervisor.brokers import bootstrap_of, lay_out_brokers, names_of, prepare_brokers
from infra.supervisor.child import ProcessSpec
from infra.supervisor.errand import run_errand
from infra.supervisor.folder import DataFolder
from infra.supervisor.nursery import Nursery
from infra.supervisor.plan import (
    Ports,
    kind_of,
    python_command,
    service,
    settings_of,
)
from infra.supervisor.sockets import claim_port, free_port, listen
from infra.supervisor.state import Endpoints
from schemas import limits

__all__ = ["External", "Layout", "Startup", "lay_out", "with_card"]

_log = structlog.get_logger()
_LOOPBACK = "127.0.0.1"
_CARD_FILE = "millstream.json"  # written last by the model's preparation


@dataclass(frozen=True, slots=True, kw_only=True)
class External:
    """Which parts exist elsewhere and are only used."""

    kafka: bool = False
    clickhouse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where everything of one platform listens."""

    config: Config
    """With all addresses filled in."""
    external: External
    public: socket.socket
    brokers: tuple[Node, ...]
    """Embedded ones; none where Kafka is external."""
    services: Mapping[str, Ports]
    endpoints: Endpoints


def lay_out(config: Config, external: External, entropy: Entropy) -> Layout:
    """Choose and claim all ports. Raises StartupError naming one that is taken."""
    public = listen(config.host, config.port, "--port")
    try:
        port = public.getsockname()[1]
        brokers = () if external.kafka else lay_out_brokers(config, entropy)
        config = dataclasses.replace(
            config,
            kafka=bootstrap_of(brokers) if brokers else config.kafka,
            brokers=max(1, len(brokers)),  # of an external cluster we expect no number
        )
        if not external.clickhouse:
            own = claim_port(_LOOPBACK, config.clickhouse_port, "--clickhouse-port", entropy)
            config = dataclasses.replace(
                config, clickhouse_port=own, clickhouse_url=f"http://{_LOOPBACK}:{own}"
            )
        names = [
            *(f"gateway-{number}" for number in range(config.gateways)),
            *(f"worker-{number}" for number in range(config.workers)),
            "metering",
            "stream-app",
            "clickhouse",
        ]
        services = {
            name: Ports(own=free_port(entropy), health=free_port(entropy)) for name in names
        }
    except BaseException:
        public.close()
        raise
    shown = _LOOPBACK if config.host in ("0.0.0.0", "::") else config.host
    shown = f"[{shown}]" if ":" in shown else shown
    return Layout(
        config=config,
        external=external,
        public=public,
        brokers=brokers,
        services=services,
        endpoints=Endpoints(
            public=f"http://{shown}:{port}",
            gateways=tuple(
                f"http://{_LOOPBACK}:{services[name].own}"
                for name in names
                if name.startswith("gateway-")
            ),
            kafka=config.kafka,
            clickhouse=config.clickhouse_url,
        ),
    )


def with_card(config: Config) -> Config:
    """Return the configuration with the version and context that the prepared model has.

    Raises: StartupError where its folder has no readable card.
    """
    path = config.model_path / _CARD_FILE
    try:
        card = json.loads(path.read_text())
        version, context_tokens = str(card["model_version"]), int(card["context_tokens"])
    except (OSError, ValueError, KeyError) as error:
        raise StartupError(
            f"the prepared model lacks its card {path} ({error}): remove {path.parent} and start "
            "again, it will be made anew"
        ) from error
    return dataclasses.replace(
        config,
        model_version=version,
        context_tokens=min(context_tokens, config.context_tokens),
    )


class Startup:
    """One start of a platform on a layout."""

    def __init__(
        self,
        *,
        layout: Layout,
        folder: DataFolder,
        nursery: Nursery,
        environ: Mapping[str, str],
        entropy: Entropy,
        say: Callable[[str], None],
    ) -> None:
        self._layout, self._folder, self._nursery = layout, folder, nursery
        self._environ, self._entropy, self._say = environ, entropy, say
        self._config = layout.config
        self._kafka_starts = asyncio.Event()
        """Set once the broker's process runs, or is somebody else's: only then is it waited for."""

    async def run(self) -> None:
        """Start everything but the stream-app; return when requests can be served.

        Raises: StartupError; what was started keeps running until the nursery drains.
        """
        parts = [
            asyncio.create_task(self._start_log_and_store()),
            asyncio.create_task(self._prepare_model()),
        ]
        try:
            await asyncio.gather(*parts)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
        self._say("waiting for gateways and workers")
        await self._nursery.ready(*self._names("gateway"), *self._names("worker"), "metering")

    def finish(self) -> None:
        """Start the stream-app, which no request waits for."""
        self._start("stream-app")

    async def _start_log_and_store(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._start_kafka())
            await self._start_clickhouse()
            await self._kafka_starts.wait()  # a first start fetches it before: that may take long
            # It waits for Kafka's readiness by itself, and loads meanwhile.
            self._say("making topics, tables and the first keys")
            group.create_task(self._errand("apply", "infra.supervisor.seed", quiet=True))
        self._start("metering")

    async def _start_kafka(self) -> None:
        config, brokers = self._config, self._layout.brokers
        if brokers:
            self._say(f"starting Kafka on {config.kafka}")
            for spec in await asyncio.to_thread(self._prepare_kafka):
                self._nursery.start(spec)
            self._kafka_starts.set()
            await self._nursery.ready(*names_of(brokers))
        self._kafka_starts.set()
        await embedded.wait_ready(config.kafka, limits.START_WITHIN_S, brokers=config.brokers)

    def _prepare_kafka(self) -> list[ProcessSpec]:
        """Fetch, format and describe the embedded brokers; blocks, so it runs in a thread."""
        return prepare_brokers(
            self._layout.brokers,
            self._folder.path / "kafka",
            cache_dir=self._config.cache_dir,
            environ=self._environ,
            entropy=self._entropy,
            say=self._say,
        )

    async def _start_clickhouse(self) -> None:
        if not self._layout.external.clickhouse:
            self._say(f"starting ClickHouse on {self._config.clickhouse_url}")
            self._start("clickhouse")
            await self._nursery.ready("clickhouse")

    async def _prepare_model(self) -> None:
        """Make the model's files where they are missing; then start those that use them."""
        scripted = self._config.engine == "scripted"
        if self._config.model == DEFAULT_MODEL:
            options = ("--tokenizer-only",) if scripted else ()
            cache = ("--cache", str(self._config.cache_dir))
            await self._errand("model", "engine_workers.engine.model", *cache, *options)
            self._config = with_card(self._config)
        # Both wait for the log by themselves: gateways answer 529 meanwhile, workers load.
        for name in [*self._names("gateway"), *self._names("worker")]:
            self._start(name)

    def _names(self, kind: str) -> list[str]:
        return [name for name in self._layout.services if kind_of(name) == kind]

    def _start(self, name: str) -> None:
        layout = self._layout
        self._nursery.start(
            service(
                self._config,
                name,
                layout.services[name],
                self._environ,
                listen_fd=layout.public.fileno() if name.startswith("gateway-") else None,
            )
        )

    async def _errand(self, name: str, module: str, *arguments: str, quiet: bool = False) -> None:
        """Run one of our modules to its end; `quiet` keeps its lines off the terminal."""
        await run_errand(
            name,
            python_command(module, *arguments),
            settings_of(self._config, name, self._environ),
            self._folder,
            (lambda line: _log.info("errand", name=name, line=line)) if quiet else self._say,
        )
