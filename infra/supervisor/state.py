"""What a running platform looks like from outside: DIR/state.json.

Owns its form. The supervisor writes it at each change; `millstream status` and the other commands
read it. Secrets are not in it.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Endpoints", "PlatformState", "ProcessEntry", "read_state", "write_state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Addresses of the platform."""

    public: str
    gateways: tuple[str, ...]
    kafka: str
    clickhouse: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEntry:
    """One process as operators see it."""

    name: str
    pid: int | None
    state: str
    ready: bool
    restarts: int
    health: str | None
    """URL of /health's folder: /health, /ready and /metrics stand under it; None for Kafka."""
    probe: tuple[str, int, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformState:
    """The whole platform."""

    pid: int
    ready: bool
    model: str
    endpoints: Endpoints
    processes: tuple[ProcessEntry, ...]


def write_state(path: Path, state: PlatformState) -> None:
    """Replace the file at once. Raises OSError."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(asdict(state), indent=1))
    partial.replace(path)


def read_state(path: Path) -> PlatformState | None:
    """Return what the file says, or None where there is none or it is cut short."""
    try:
        fields = json.loads(path.read_text())
        endpoints = fields["endpoints"]
        return PlatformState(
            pid=fields["pid"],
            ready=fields["ready"],
            model=fields["model"],
            endpoints=Endpoints(**{**endpoints, "gateways": tuple(endpoints["gateways"])}),
            processes=tuple(
                ProcessEntry(**{**entry, "probe": tuple(entry["probe"])})
                for entry in fields["processes"]
            ),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
