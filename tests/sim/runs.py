"""Many runs: over seeds, over processor cores, with their figures added up."""

import gc
import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from statistics import median

import structlog

from tests.sim.mutations import MUTATIONS
from tests.sim.options import Bias, draw
from tests.sim.world import Outcome, World

SEEDS_PER_TASK = 10
VIOLATIONS_MAX = 5
"""A long run that has found as many has found enough."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """What many runs came to."""

    seeds: int = 0
    events: int = 0
    steps: int = 0
    requests_min: int = 1 << 30
    faults: list[int] = field(default_factory=list)
    fired: Counter[str] = field(default_factory=Counter)
    violations: list[Outcome] = field(default_factory=list)
    wall_s: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Add one run."""
        self.seeds += 1
        self.events += outcome.events
        self.steps += outcome.steps
        self.requests_min = min(self.requests_min, outcome.options.requests)
        self.faults.append(outcome.faults)
        self.fired.update(outcome.fired)
        if outcome.violation is not None:
            self.violations.append(outcome)

    @property
    def faults_median(self) -> float:
        """The median of faults that struck a run."""
        return median(self.faults) if self.faults else 0.0

    def __str__(self) -> str:
        counters = "\n".join(f"  {name:24}{count:8}" for name, count in sorted(self.fired.items()))
        return (
            f"{self.seeds} seeds in {self.wall_s:.1f} s: {self.seeds / self.wall_s:.1f} seeds/s, "
            f"{self.events / self.wall_s:.0f} events/s, {self.steps / self.wall_s:.0f} steps/s; "
            f"faults per seed: median {self.faults_median:.0f}, {sum(self.faults)} in all\n"
            f"{counters}\n{len(self.violations)} violations"
        )


def quiet() -> None:
    """Write no log lines: a run tells its story by its events."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(50), cache_logger_on_first_use=False
    )


def run_seed(seed: int, planted: str | None = None, *, bias: Bias | None = None) -> Outcome:
    """Run one seed, with one of the planted bugs (and its schedules) where it is named."""
    if planted is None:
        return World(draw(seed, bias)).run()
    mutation = MUTATIONS[planted]
    world = World(draw(seed, mutation.bias))
    with mutation.planted(world):
        return world.run()


def run_many(seeds: Iterable[int], jobs: int = 1) -> Tally:
    """Run seeds on several cores; the order of results is that of the seeds."""
    tally, started_s = Tally(), time.monotonic()
    for outcome in _outcomes(list(seeds), jobs):
        tally.add(outcome)
    tally.wall_s = time.monotonic() - started_s
    return tally


def run_for(seconds: float, jobs: int) -> Tally:
    """Run seeds from 0 on for so long, or until some have violated something."""
    tally, started_s = Tally(), time.monotonic()
    firsts = itertools.count(0, SEEDS_PER_TASK)
    with _pool(jobs) as pool:
        running = {pool.submit(_run_chunk, next(firsts)) for _ in range(2 * jobs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for outcome in itertools.chain.from_iterable(task.result() for task in done):
                tally.add(outcome)
            in_time = time.monotonic() - started_s < seconds
            if in_time and len(tally.violations) < VIOLATIONS_MAX:
                running |= {pool.submit(_run_chunk, next(firsts)) for _ in done}
    tally.wall_s = time.monotonic() - started_s
    return tally


def find(planted: str, within_cpu_s: float) -> tuple[Outcome | None, int, float]:
    """Look for a planted bug; return the run that found it, seeds tried, CPU seconds spent."""
    started_s = time.process_time()
    seed = 0
    while time.process_time() - started_s < within_cpu_s:
        outcome = run_seed(seed, planted)
        seed += 1
        if outcome.violation is not None:
            return outcome, seed, time.process_time() - started_s
    return None, seed, time.process_time() - started_s


def _outcomes(seeds: list[int], jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from _run_some(seeds)
        return
    firsts = range(0, len(seeds), SEEDS_PER_TASK)
    chunks = [seeds[first : first + SEEDS_PER_TASK] for first in firsts]
    with _pool(jobs) as pool:
        for outcomes in pool.map(_run_some, chunks):
            yield from outcomes


def _pool(jobs: int) -> ProcessPoolExecutor:
    # Spawned, not forked: a run must not depend on what its parent process happened to hold.
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))


def _run_chunk(first: int) -> list[Outcome]:
    return _run_some(list(range(first, first + SEEDS_PER_TASK)))


def _run_some(seeds: list[int]) -> list[Outcome]:
    quiet()
    # Collecting between runs only: a finished run is one large cycle, a running one holds no waste.
    gc.disable()
    gc.freeze()
    outcomes = []
    for seed in seeds:
        outcomes.append(run_seed(seed))
        gc.collect()
    gc.unfreeze()
    gc.enable()
    return outcomes
