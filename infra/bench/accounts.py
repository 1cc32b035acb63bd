"""What processes cost: CPU seconds and memory, each with its children.

Owns the reading of the operating system's counters (psutil). Called by the benches.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import psutil

__all__ = [
    "PeakMemory",
    "Usage",
    "cpu_between",
    "pss_bytes",
    "rss_bytes",
    "sample",
    "total_pss_bytes",
]


Outcome = TypeVar("Outcome")

_LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Counters of one process and its children at one moment."""

    cpu_s: float
    rss_bytes: int


class PeakMemory:
    """The highest resident memory of a process while something else runs."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.rss_bytes = rss_bytes(pid)

    async def during(self, work: Awaitable[Outcome]) -> Outcome:
        """Await the work, looking twice a second."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await asyncio.wait([task], timeout=_LOOK_EVERY_S)
            self.rss_bytes = max(self.rss_bytes, rss_bytes(self._pid))
        return task.result()


def sample(pids: Mapping[str, int]) -> dict[str, Usage]:
    """Return the counters by name; a process that is gone is left out.

    Children count for their parent, unless they are named themselves.
    """
    found, named = {}, set(pids.values())
    for name, pid in pids.items():
        family = [each for each in _family(pid) if each.pid == pid or each.pid not in named]
        if family:
            found[name] = Usage(
                cpu_s=sum(_cpu_s(process) for process in family),
                rss_bytes=sum(_rss(process) for process in family),
            )
    return found


def cpu_between(before: Mapping[str, Usage], after: Mapping[str, Usage]) -> dict[str, float]:
    """Return CPU seconds spent between two samples, by name; processes in both only."""
    return {
        name: max(0.0, after[name].cpu_s - before[name].cpu_s) for name in before if name in after
    }


def rss_bytes(pid: int) -> int:
    """Return the resident memory of a process and its children."""
    return sum(_rss(process) for process in _family(pid))


def pss_bytes(pid: int) -> int:
    """Return a process's and its children's share of memory, shared pages divided."""
    total = 0
    for process in _family(pid):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total


def total_pss_bytes(pids: Mapping[str, int]) -> int:
    """Return the sum of the shares of several processes."""
    return sum(pss_bytes(pid) for pid in pids.values())


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
