"""Fuzz one target with coverage: `python -m tests.fuzz TARGET [--seconds N] [--folder DIR]`.

Starts from the small corpus beside this file, which it never changes; what it finds lies in the
folder, a crash with the bytes that cause it. Exits 0 where nothing was found.
"""

import argparse
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["schemas", "gateway"]):
    from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
INPUT_BYTES_MAX = 4_096


def main() -> None:
    """Read the arguments and fuzz; libFuzzer ends the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--folder", type=Path, default=Path("fuzz"))
    chosen = parser.parse_args()
    found = chosen.folder / chosen.target
    found.mkdir(parents=True, exist_ok=True)
    options = [
        *(sys.argv[0], str(found), str(CORPUS / chosen.target)),
        f"-max_total_time={chosen.seconds}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-artifact_prefix={found}/",
        f"-dict={CORPUS / 'words.dict'}",
        *("-timeout=5", "-rss_limit_mb=1024", "-print_final_stats=1", "-seed=1"),
    ]
    atheris.Setup(options, TARGETS[chosen.target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
