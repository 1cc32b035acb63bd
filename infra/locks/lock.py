"""Make the lock files anew from `pyproject.toml`; run by `make lock` inside the environment."""

import subprocess
import sys
from pathlib import Path

LOCKS = Path(__file__).resolve().parent
ROOT = LOCKS.parent.parent
HEADER = "# Made by `make lock`; every wheel that `make install` may use, with its hash.\n"


def main() -> int:
    """Resolve both devices, keeping versions that still fit; return an exit status."""
    uv = Path(sys.executable).with_name("uv")
    for device in ("cpu", "cuda"):
        path = LOCKS / f"{device}.txt"
        extras = ["--extra", device, "--extra", "dev"]
        options = ["--universal", "--python-version", "3.11", "--only-binary", ":all:"]
        form = ["--generate-hashes", "--no-header", "--no-annotate", "--quiet"]
        files = ["pyproject.toml", "-o", str(path)]
        command = [str(uv), "pip", "compile", *files, *extras, *options, *form]
        subprocess.run(command, check=True, cwd=ROOT)
        path.write_text(HEADER + path.read_text())
    _pin_installer(LOCKS / "cpu.txt", LOCKS / "uv.txt")
    return 0


def _pin_installer(lock: Path, target: Path) -> None:
    """Copy uv's own entry, without markers, to the file that pip reads first."""
    taken: list[str] = []
    for line in lock.read_text().splitlines():
        if line.startswith("uv=="):
            taken.append(line.split(" ; ")[0] + " \\")
        elif taken and not line.startswith(" "):
            break
        elif taken:
            taken.append(line)
    head = "# The installer itself, fetched by pip; version and hashes are those of cpu.txt."
    target.write_text("\n".join([head, *taken]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
