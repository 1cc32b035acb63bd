"""Ending what a killed supervisor left behind, the same from `up` and from `down`.

Owns the order and the bounds of it; which processes are ours `orphans.py` decides. The caller holds
the data folder's lock, so that nobody starts processes on it meanwhile.
"""

import asyncio
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from infra.supervisor import orphans
from infra.supervisor.orphans import Recorded
from infra.supervisor.plan import kind_of
from schemas import limits

__all__ = ["end_leftovers", "listed"]

_STORES = ("kafka", "clickhouse")


async def end_leftovers(run_dir: Path, say: Callable[[str], None]) -> tuple[Recorded, ...]:
    """End what still runs of those recorded in `run_dir`; return what could not be ended.

    Stores are ended politely, the others at once: any other process may be killed at any time by
    design, and could not drain alone.
    """
    found = orphans.left_behind(run_dir)
    if not found:
        return ()
    say(f"ending what an earlier run left behind: {listed(found)}")
    for entry in found:
        polite = kind_of(entry.name) in _STORES
        orphans.signal_group(entry.pid, signal.SIGTERM if polite else signal.SIGKILL)
    for entry in await _alive_after(limits.ORPHAN_WITHIN_S, found):
        orphans.signal_group(entry.pid, signal.SIGKILL)
    remaining = await _alive_after(limits.HURRIED_STAGE_S, found)
    for entry in found:
        if entry not in remaining:
            orphans.forget(run_dir, entry.name)
    return remaining


def listed(entries: Sequence[Recorded]) -> str:
    """Return processes in words, for people who may have to end them."""
    return ", ".join(f"{entry.name} (pid {entry.pid})" for entry in entries)


async def _alive_after(within_s: float, entries: Sequence[Recorded]) -> tuple[Recorded, ...]:
    """Wait until all have ended, at most that long; return those that have not."""
    for _ in range(int(within_s / limits.READY_POLL_MIN_S)):
        if not any(map(orphans.alive, entries)):
            break
        await asyncio.sleep(limits.READY_POLL_MIN_S)
    return tuple(filter(orphans.alive, entries))
