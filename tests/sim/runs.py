"""Many runs: over seeds, over processor cores, with their figures added up."""

import gc
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from statistics import median

import structlog

from tests.sim.mutations import MUTATIONS
from tests.sim.options import Bias, Options, draw
from tests.sim.shrink import shrink
from tests.sim.world import Outcome, World

SEEDS_PER_TASK = 10
RUNS_PER_COLLECTION = 5
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
    bias = bias if planted is None else MUTATIONS[planted].bias
    return run_options(draw(seed, bias), planted)


def run_options(options: Options, planted: str | None = None) -> Outcome:
    """Run what has been drawn, with one of the planted bugs where it is named."""
    world = World(options)
    if planted is None:
        return world.run()
    with MUTATIONS[planted].planted(world):
        return world.run()


def shrunk(outcome: Outcome, planted: str | None = None) -> Outcome:
    """Return a smaller failure of the same kind."""
    return shrink(outcome, lambda options: run_options(options, planted))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search for a planted bug came to."""

    outcome: Outcome | None
    """The run that found it."""
    seeds: int
    cpu_s: float
    unsound: Outcome | None = None
    """A run of the same schedules that fails without the bug."""


def find(planted: str, within_cpu_s: float, sound_seeds: int = 0) -> Found:
    """Look for a planted bug; then see that the schedules are clean without it."""
    started_s, outcome, seeds = time.process_time(), None, 0
    with _collecting_between_runs() as collect:
        while outcome is None and time.process_time() - started_s < within_cpu_s:
            tried = run_seed(seeds, planted)
            seeds += 1
            outcome = tried if tried.violation is not None else None
            collect()
        cpu_s = time.process_time() - started_s
        for seed in range(sound_seeds):
            sound = run_seed(seed, bias=MUTATIONS[planted].bias)
            collect()
            if sound.violation is not None:
                return Found(outcome=outcome, seeds=seeds, cpu_s=cpu_s, unsound=sound)
    return Found(outcome=outcome, seeds=seeds, cpu_s=cpu_s)


def start_searches(
    planted: Iterable[str], jobs: int, within_cpu_s: float, sound_seeds: int
) -> "dict[str, Future[Found]]":
    """Look for many planted bugs on several cores; return what each search will come to."""
    pool = _pool(jobs)
    searches = {name: pool.submit(find, name, within_cpu_s, sound_seeds) for name in planted}
    pool.shutdown(wait=False)  # ends once all searches have
    return searches


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
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_prepare)


def _prepare() -> None:
    """Make a process ready that does nothing but runs: what it has loaded is never waste."""
    quiet()
    gc.collect()
    gc.disable()
    gc.freeze()


def _run_chunk(first: int) -> list[Outcome]:
    return _run_some(list(range(first, first + SEEDS_PER_TASK)))


def _run_some(seeds: list[int]) -> list[Outcome]:
    outcomes = []
    with _collecting_between_runs() as collect:
        for seed in seeds:
            outcomes.append(run_seed(seed))
            collect()
    return outcomes


@contextmanager
def _collecting_between_runs() -> Iterator[Callable[[], object]]:
    """Collect only when told to: finished runs are large cycles, running ones hold no waste."""
    prepared = not gc.isenabled()
    if not prepared:
        _prepare()
    runs = itertools.count(1)

    def collect() -> None:
        if next(runs) % RUNS_PER_COLLECTION == 0:
            gc.collect()

    try:
        yield collect
    finally:
        if not prepared:
            gc.unfreeze()
            gc.enable()
