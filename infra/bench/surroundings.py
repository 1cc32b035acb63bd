"""What every bench is given: folders, environment, clock, randomness, and how to talk meanwhile."""

import json
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.ports import Clock, Entropy

__all__ = ["Surroundings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Made by the command; benches read no environment themselves."""

    folder: Path
    """Scratch of this run: data folders and logs."""
    peers: Path
    """Environments of peers, kept between runs."""
    environ: Mapping[str, str]
    clock: Clock
    entropy: Entropy
    say: Callable[[str], None]
    out: Path | None = None
    """Where raw figures and plots go."""

    def keep(self, name: str, figures: object) -> None:
        """Write raw figures to the output folder, if there is one, with the machine they are of."""
        if self.out is None:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"machine": self.machine(), "figures": figures}, indent=1)
        (self.out / f"{name}.json").write_text(text)

    def draw(self, name: str, svg: str) -> None:
        """Write a plot to the output folder, if there is one."""
        if self.out is not None:
            (self.out / f"{name}.svg").write_text(svg)

    def machine(self) -> dict[str, Any]:
        """Return what the figures depend on: cores, memory, load by others."""
        return {
            "time_ms": self.clock.now_ms(),
            "cores": len(os.sched_getaffinity(0)),
            "processor": _processor(),
            "load": os.getloadavg(),
            "python": platform.python_version(),
            "kernel": platform.release(),
        }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
