"""Which processes a platform has and with which settings each starts.

Pure: from the platform's configuration and chosen ports to process specifications. The order of
start and stop is `STAGES`; acting on it is `supervisor.py`'s.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infra.config import PREFIX, Config, variables
from infra.supervisor.child import ProcessSpec
from infra.supervisor.priority import GENTLE, NORMAL
from infra.supervisor.probe import Probe

__all__ = [
    "STOP_ORDER",
    "Ports",
    "kafka_service",
    "kind_of",
    "python_command",
    "service",
    "settings_of",
]

STOP_ORDER = ("gateway", "worker", "metering", "stream-app", "clickhouse", "kafka")
"""Who stops after whom: first what takes requests, last what everything is written to."""

_MODULES = {
    "gateway": "gateway",
    "worker": "engine_workers",
    "metering": "streams.metering",
    "stream-app": "streams.stream_app",
    "clickhouse": "infra.clickhouse",
}
_IN_BACKGROUND = ("metering", "stream-app", "clickhouse")
"""No client waits for what these do; a usage row may be a second late."""
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where one process listens: its own address (gateways only) and its health."""

    own: int
    health: int


def kind_of(process: str) -> str:
    """Return the kind of a process name: `worker` for `worker-0`."""
    name, _, number = process.rpartition("-")
    return name if number.isdigit() else process


def python_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command of one of our modules; -P keeps the working folder off the import path."""
    return (sys.executable, "-P", "-m", module, *arguments)


def settings_of(config: Config, process: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return a child's whole environment: ours without MILLSTREAM_*, then its configuration."""
    kept = {name: value for name, value in environ.items() if not name.startswith(PREFIX)}
    own = dataclasses.replace(config, process=process, url="", key="")
    return {**kept, **variables(own)}


def service(
    config: Config,
    process: str,
    ports: Ports,
    environ: Mapping[str, str],
    *,
    listen_fd: int | None = None,
) -> ProcessSpec:
    """Return the specification of one of our own long-lived processes.

    Args: `listen_fd` is the public socket (gateways).
    """
    own = dataclasses.replace(
        config,
        port=ports.own,
        host=_LOOPBACK,
        health_port=ports.health,
        listen_fd=listen_fd,
    )
    kind = kind_of(process)
    match kind:
        case "gateway":
            probe = Probe(host=_LOOPBACK, port=ports.own, path="/ready")
        case "clickhouse":
            probe = Probe(host=_LOOPBACK, port=config.clickhouse_port, path="/ping")
        case _:
            probe = Probe(host=_LOOPBACK, port=ports.health, path="/ready")
    return ProcessSpec(
        name=process,
        command=python_command(_MODULES[kind]),
        environ=settings_of(own, process, environ),
        probe=probe,
        listen_fd=listen_fd,
        # A model takes both cores for seconds to load, just when others take over its work.
        loads_gently=kind == "worker",
        niceness=GENTLE if kind in _IN_BACKGROUND else NORMAL,
    )


def kafka_service(
    name: str,
    command: Sequence[str],
    port: int,
    environ: Mapping[str, str],
    *,
    has_others: bool,
) -> ProcessSpec:
    """Return the specification of an embedded broker, which speaks no HTTP.

    Args: `has_others` tells whether other brokers serve while this one comes back.
    """
    return ProcessSpec(
        name=name,
        command=tuple(command),
        environ={name: value for name, value in environ.items() if not name.startswith(PREFIX)},
        probe=Probe(host=_LOOPBACK, port=port, path=None),
        loads_gently=has_others,  # a JVM takes both cores to start, just when leaders move
    )
