"""The order of a start: nobody waits against the clock for what is still being fetched."""

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any, cast

from infra.config import Config
from infra.kafka.properties import Node
from infra.supervisor.child import ProcessSpec
from infra.supervisor.folder import DataFolder
from infra.supervisor.nursery import Nursery
from infra.supervisor.startup import External, Layout, Startup
from infra.supervisor.state import Endpoints
from infra.system import SystemEntropy


class _Nursery:
    """Starts nothing and finds everything ready."""

    def start(self, spec: ProcessSpec) -> None:
        """Start nothing."""

    async def ready(self, *names: str) -> None:
        """Be ready at once."""


class _SlowToFetch(Startup):
    """A start whose broker is being fetched until the gate opens."""

    gate: threading.Event
    errands: list[str]

    def _prepare_kafka(self) -> list[ProcessSpec]:
        assert self.gate.wait(5)
        return []

    async def _errand(self, name: str, module: str, *arguments: str, quiet: bool = False) -> None:
        self.errands.append(name)


def test_topics_are_made_only_once_the_broker_starts(tmp_path: Path) -> None:
    """`apply` gives Kafka a minute; a first start, which fetches it before, may take longer."""

    async def scenario() -> None:
        with socket.socket() as public:
            startup = _SlowToFetch(
                layout=Layout(
                    config=Config(kafka="127.0.0.1:1"),
                    external=External(kafka=False, clickhouse=True),
                    public=public,
                    brokers=(Node(node_id=0, host="127.0.0.1", port=1, controller_port=2),),
                    services={},
                    endpoints=Endpoints(public="", gateways=(), kafka="", clickhouse=""),
                ),
                folder=DataFolder(tmp_path),
                nursery=cast(Nursery, _Nursery()),
                environ={},
                entropy=SystemEntropy(),
                say=lambda line: None,
            )
            startup.gate, startup.errands = threading.Event(), []
            starting = asyncio.create_task(cast(Any, startup)._start_log_and_store())
            await asyncio.sleep(0.2)
            assert startup.errands == []
            startup.gate.set()
            async with asyncio.timeout(5):
                while startup.errands != ["apply"]:  # noqa: ASYNC110  # a list wakes nobody
                    await asyncio.sleep(0.01)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)

    asyncio.run(scenario())
