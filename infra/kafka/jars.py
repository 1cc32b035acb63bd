"""The pinned jars of Apache Kafka: fetched once, verified, kept for every later start.

Owns `jars.sha256` (SHA-256, size and Maven coordinate of each jar) and the folder that holds the
verified files. `jgo` downloads, in pure Python: neither Java nor Maven has to be installed. Called
by `infra/kafka/embedded.py`.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from infra.errors import StartupError

KAFKA_VERSION = "4.3.1"
DOWNLOADS_AT_ONCE = 4
DOWNLOAD_TRIES_MAX = 5
DOWNLOAD_TIMEOUT_S = 30
RETRY_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One pinned file."""

    coordinate: str
    """Maven's `group:artifact:version`."""
    size_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        """Return the name that Maven gives the file."""
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"


def pins() -> tuple[Jar, ...]:
    """Return every jar that the broker's class path needs, in the order of its coordinates."""
    text = resources.files("infra.kafka").joinpath("jars.sha256").read_text()
    fields = (line.split() for line in text.splitlines())
    return tuple(
        Jar(sha256=sha256, size_bytes=int(size), coordinate=coordinate)
        for sha256, size, coordinate in fields
    )


def missing(folder: Path, jars: Sequence[Jar]) -> tuple[Jar, ...]:
    """Return the jars that `folder` does not hold whole.

    Cheap on purpose, since every start asks: a file gets its name only after its SHA-256 was right
    (see `fetch`), so the size tells a lost or cut file.
    """
    return tuple(jar for jar in jars if _size_bytes(folder / jar.file_name) != jar.size_bytes)


def fetch(folder: Path, jars: Sequence[Jar], say: Callable[[str], None]) -> None:
    """Download `jars` into `folder`, each renamed into place once verified.

    A broken run resumes at the jar that it broke at.

    Raises: StartupError where a jar cannot be had, or is not the pinned one, after several tries.
    """
    folder.mkdir(parents=True, exist_ok=True)
    megabytes = sum(jar.size_bytes for jar in jars) / 1e6
    say(f"Downloading Apache Kafka {KAFKA_VERSION}: {len(jars)} files, {megabytes:.0f} MB")
    # A folder of this process alone: a second run at the same time must not see half a file.
    scratch = folder / f"partial-{os.getpid()}"
    try:
        with ThreadPoolExecutor(DOWNLOADS_AT_ONCE, thread_name_prefix="jar") as pool:
            list(pool.map(lambda jar: _fetch_one(jar, folder, scratch), jars))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _fetch_one(jar: Jar, folder: Path, scratch: Path) -> None:
    reason = ""
    for attempt in range(DOWNLOAD_TRIES_MAX):
        if attempt:
            time.sleep(RETRY_PAUSE_S * attempt)
        try:
            downloaded = _download(jar, scratch)
        except (OSError, RuntimeError, AssertionError) as error:
            # requests' errors are OSErrors; jgo raises the others for a missing or cut file.
            reason = str(error) or type(error).__name__
            shutil.rmtree(scratch / jar.file_name, ignore_errors=True)
            continue
        found = _sha256(downloaded)
        if found == jar.sha256:
            downloaded.replace(folder / jar.file_name)
            return
        reason = f"SHA-256 is {found}, expected {jar.sha256}"
        shutil.rmtree(scratch / jar.file_name, ignore_errors=True)
    raise StartupError(
        f"cannot download {jar.coordinate} from Maven Central: {reason}. "
        "Check the network (and proxy settings), then run the same command again: it resumes."
    )


def _download(jar: Jar, scratch: Path) -> Path:
    # Imported here: it costs 0.2 s and is needed for the first start only.
    from jgo.config import GlobalSettings
    from jgo.constants import MAVEN_CENTRAL_URL
    from jgo.maven import MavenContext, PythonResolver

    context = MavenContext(
        resolver=PythonResolver(),  # pure Python; the other one runs `mvn`
        repo_cache=scratch / jar.file_name,  # one folder a jar: a failed try is removed whole
        # The operator's own jgo configuration may name a mirror.
        remote_repos={"central": MAVEN_CENTRAL_URL, **GlobalSettings.load().repositories},
        timeout=DOWNLOAD_TIMEOUT_S,
    )
    group, artifact, version = jar.coordinate.split(":")
    path = context.project(group, artifact).at_version(version).artifact().resolve()
    return Path(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size_bytes(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
