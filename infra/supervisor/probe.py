"""Ask a local process whether it is ready: one HTTP request or one connection, with a bound.

Owns nothing. Called by the supervisor's poll and by `millstream status`.
"""

import asyncio
from dataclasses import dataclass

from schemas import limits

__all__ = ["Probe", "answers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Where a process says that it is ready."""

    host: str
    port: int
    path: str | None
    """None = an accepted connection is answer enough."""


async def answers(probe: Probe) -> bool:
    """Return whether the process answers with 200 within the bound."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(limits.PROBE_WITHIN_S):
            reader, writer = await asyncio.open_connection(probe.host, probe.port)
            if probe.path is None:
                return True
            head = f"GET {probe.path} HTTP/1.1\r\nHost: {probe.host}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode())
            status = await reader.readline()
            return status.split(b" ")[1:2] == [b"200"]
    except (OSError, TimeoutError, ValueError):
        return False
    finally:
        if writer is not None:
            writer.close()
