"""`python -m tests.sim`: replay one seed, run many, or look for a planted bug."""

import argparse
import sys

from tests.sim.mutations import MUTATIONS
from tests.sim.options import draw
from tests.sim.runs import Tally, find, quiet, run_for, run_many, run_seed, shrunk

FIND_WITHIN_CPU_S = 60.0


def main(arguments: list[str]) -> int:
    """Run what is asked for; return 1 where anything was violated (or not found)."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim")
    parser.add_argument("--seed", type=int, help="replay this seed")
    parser.add_argument("--seeds", help="run A..B (B not included)")
    parser.add_argument("--for-s", type=float, help="run seeds from 0 on for so long")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--planted", choices=sorted(MUTATIONS), help="plant this bug")
    parser.add_argument("--shrink", action="store_true", help="make the seed's failure small")
    parser.add_argument("--all-planted", action="store_true", help="look for every planted bug")
    asked = parser.parse_args(arguments)
    quiet()
    if asked.all_planted:
        names = list(MUTATIONS)
        return max([_find(name) for name in names[names.index(asked.planted or names[0]) :]])
    if asked.for_s is not None:
        return _show(run_for(asked.for_s, asked.jobs))
    if asked.seeds is not None:
        first, last = (int(part) for part in asked.seeds.split(".."))
        return _show(run_many(range(first, last), asked.jobs))
    if asked.planted is not None and asked.seed is None:
        return _find(asked.planted)
    return _replay(asked.seed or 0, asked.planted, small=asked.shrink)


def _replay(seed: int, planted: str | None, *, small: bool) -> int:
    bias = MUTATIONS[planted].bias if planted is not None else None
    print(draw(seed, bias))
    outcome = run_seed(seed, planted)
    if small and outcome.violation is not None:
        outcome = shrunk(outcome, planted)
        print(f"shrunk to {outcome.options}")
    print(
        f"trace {outcome.digest}: {outcome.events} events, {outcome.steps} steps, "
        f"{outcome.virtual_s:.1f} virtual s, {outcome.faults} faults"
    )
    print(" ".join(f"{name}={count}" for name, count in sorted(outcome.fired.items())))
    print(outcome.violation or "nothing was violated")
    return outcome.violation is not None


def _show(tally: Tally) -> int:
    print(tally)
    for outcome in tally.violations[:5]:
        print(f"\n{outcome.options}\n{outcome.violation}")
    if tally.violations:
        small = shrunk(tally.violations[0])
        print(f"\nthe first one, shrunk: {small.options}\n{small.violation}")
    return bool(tally.violations)


def _find(planted: str) -> int:
    search = find(planted, FIND_WITHIN_CPU_S)
    outcome = search.outcome
    found = outcome.violation.split("\n")[0][:160] if outcome and outcome.violation else "NOT FOUND"
    print(f"{planted:36} {search.seeds:5} seeds {search.cpu_s:6.1f} CPU s  {found}", flush=True)
    return outcome is None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
