"""Fill `.venv` from the lock files; run by `make install` with a bare Python.

Owns the order: virtual environment, uv by pip (pinned, hashed), everything else by uv (pinned,
hashed), then the project itself in place. Imports nothing but the standard library. A stamp over
all inputs makes a second run return at once, without network.
"""

from __future__ import annotations  # an older Python must live to say what it lacks

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

LOCKS = Path(__file__).resolve().parent
ROOT = LOCKS.parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / ".millstream-installed"
TRIES = 6
FREE_BYTES_MIN = 14 * 1024**3  # 6 GB of packages, their cache on the same disk, and room for data


def main() -> int:
    """Install unless the stamp says that nothing changed; return an exit status."""
    parser = argparse.ArgumentParser(description="Fill .venv from the lock files.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    device = parser.parse_args().device
    wanted = _digest(device)
    if STAMP.exists() and STAMP.read_text() == wanted:
        return 0
    problem = _unfit()
    if problem:
        print(f"millstream cannot be installed here: {problem}", file=sys.stderr)
        return 2
    print(
        f"Installing Millstream ({device}) into {VENV}.\n"
        "This fetches about 6 GB once: vLLM, PyTorch, Kafka's JVM, ClickHouse's engine and a\n"
        "93 MB model. A broken download is taken up again; repeat the command if it gives up.",
        flush=True,
    )
    try:
        _install(device)
    except subprocess.CalledProcessError as error:
        print(
            f"\nThe step `{' '.join(map(str, error.cmd[:5]))} ...` failed. What came is kept: "
            "check the network and the disk, then run the same command again.",
            file=sys.stderr,
        )
        return 1
    STAMP.write_text(wanted)
    print("Installed.", flush=True)
    return 0


def _install(device: str) -> None:
    python, uv = VENV / "bin" / "python", VENV / "bin" / "uv"
    STAMP.unlink(missing_ok=True)
    if not _is_ours(VENV / "pyvenv.cfg") or not python.exists():
        _run([sys.executable, "-m", "venv", "--clear", VENV])
    hashed: list[str | Path] = ["--require-hashes", "--only-binary", ":all:"]
    if not uv.exists():
        pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--no-deps"]
        _retry([*pip, *hashed, "-r", LOCKS / "uv.txt"])
    locks: list[str | Path] = [LOCKS / f"{device}.txt", LOCKS / "model.txt"]
    # Compiled once here: where Python may not write bytecode, as in many containers, every start of
    # a process would compile what it imports, 15 s of a worker's start.
    _retry([uv, "pip", "sync", "--python", python, "--compile-bytecode", *hashed, *locks])
    place: list[str | Path] = [
        uv,
        "pip",
        "install",
        "--python",
        python,
        "--quiet",
        "--no-deps",
        "--offline",
    ]
    _run([*place, "--no-build-isolation", "--editable", ROOT])


def _is_ours(settings: Path) -> bool:
    """Return whether the environment there was made by this version of Python."""
    wanted = f"version = {sys.version_info[0]}.{sys.version_info[1]}."
    return settings.exists() and wanted in settings.read_text()


def _digest(device: str) -> str:
    """Return what an environment made now would be made from."""
    digest = hashlib.sha256(f"{device} {sys.version_info[:2]} {ROOT}".encode())
    for path in (
        LOCKS / f"{device}.txt",
        LOCKS / "model.txt",
        LOCKS / "uv.txt",
        ROOT / "pyproject.toml",
        Path(__file__),
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _unfit() -> str:
    """Return why this machine will not do, or nothing."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"it needs Linux on x86-64, this is {sys.platform} on {platform.machine()}"
    if not (3, 11) <= sys.version_info[:2] < (3, 15):
        return (
            f"it needs CPython 3.11 to 3.14, this is {platform.python_version()}; "
            "name another one with `make PYTHON=python3.12 ...`"
        )
    try:
        import ensurepip  # noqa: F401  # Debian ships Python without it
    except ImportError:
        return "this Python has no ensurepip; on Debian or Ubuntu install the package python3-venv"
    free = shutil.disk_usage(ROOT).free
    if not STAMP.exists() and not (VENV / "bin" / "uv").exists() and free < FREE_BYTES_MIN:
        return f"{ROOT} has {free >> 30} GiB free, it needs {FREE_BYTES_MIN >> 30}"
    return ""


def _run(command: list[str | Path]) -> None:
    environ = dict(os.environ, UV_HTTP_TIMEOUT="120", PIP_DISABLE_PIP_VERSION_CHECK="1")
    environ.pop("VIRTUAL_ENV", None)
    subprocess.run(command, check=True, cwd=ROOT, env=environ)


def _retry(command: list[str | Path]) -> None:
    """Run a step that downloads, again where it breaks off; finished files are kept in a cache."""
    for attempt in range(1, TRIES + 1):
        try:
            _run(command)
            return
        except subprocess.CalledProcessError:
            if attempt == TRIES:
                raise
            print(f"The download broke off; try {attempt + 1} of {TRIES} follows.", flush=True)
            time.sleep(2**attempt)


if __name__ == "__main__":
    sys.exit(main())
