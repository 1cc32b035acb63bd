"""The embedded brokers: real Apache Kafka on a JVM that pip installed, for one machine.

Owns the format of its data folder, its command line and when it is ready; the supervisor owns the
process. `jars.py` fetches the program, `jvm.py` knows how to run it, `properties.py` renders the
settings, `training.py` makes its starts quick. In production none of this runs: any cluster's
address will do.
"""

import asyncio
import base64
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from infra.errors import LogUnavailable, StartupError
from infra.kafka import jars, training
from infra.kafka.jvm import KafkaInstall, locate
from infra.kafka.properties import Node, render_properties
from infra.ports import Entropy

__all__ = [
    "KafkaInstall",
    "Node",
    "cluster_id",
    "command",
    "format_storage",
    "prepare",
    "wait_ready",
]

FORMAT_TIMEOUT_S = 60
READY_TRY_TIMEOUT_S = 5.0
READY_PAUSE_S = 0.05
META_FILE = "meta.properties"
MARKER_FILE = "kafka-version"


def prepare(cache_dir: Path, say: Callable[[str], None]) -> KafkaInstall:
    """Return the installed broker; the first time, download it and train its start.

    Takes 20 s then and no time, nor the network, later. Call it off the event loop.

    Raises: StartupError where the download fails.
    """
    home = cache_dir / f"kafka-{jars.KAFKA_VERSION}"
    if absent := jars.missing(home / "lib", jars.pins()):
        jars.fetch(home / "lib", absent, say)
    install = locate(home)
    if not install.start_cache.exists():
        say("Preparing Apache Kafka for quick starts")
        training.train(install, _format, wait_ready)
    return install


def cluster_id(path: Path, entropy: Entropy) -> str:
    """Return the cluster's id, kept in the file `path` and minted the first time."""
    if path.exists():
        return path.read_text().strip()
    # Kafka's form of an id: 16 bytes in URL-safe base64 without padding, no dash in front.
    minted = base64.urlsafe_b64encode(entropy.token(16)).decode().rstrip("=").replace("-", "A")
    _write_whole(path, minted)
    return minted


def format_storage(
    install: KafkaInstall, *, node: Node, nodes: Sequence[Node], directory: Path, cluster: str
) -> Path:
    """Make `directory` ready for `node`; return the path of its settings, rendered anew each time.

    A folder formatted before keeps its data.

    Raises: StartupError where the data is of another Kafka version, cluster or node, or cannot be
    made.
    """
    data_dir = directory / "data"
    settings_path = directory / "server.properties"
    try:
        _write_whole(settings_path, render_properties(node=node, nodes=nodes, data_dir=data_dir))
        if (data_dir / META_FILE).exists():
            _refuse_foreign(directory, node, cluster)
        else:
            _format(install, settings_path, cluster)
        _write_whole(directory / MARKER_FILE, jars.KAFKA_VERSION)
    except OSError as error:
        raise _unusable(directory, str(error)) from error
    return settings_path


def command(install: KafkaInstall, settings_path: Path) -> list[str]:
    """Return what the supervisor spawns; the broker logs warnings to its standard output."""
    return install.run("kafka.Kafka", str(settings_path))


async def wait_ready(bootstrap: str, timeout_s: float, *, brokers: int = 1) -> None:
    """Return once that many brokers answer as one cluster. Raises LogUnavailable in time."""
    try:
        async with asyncio.timeout(timeout_s):
            while await _answering(bootstrap) < brokers:  # noqa: ASYNC110  # a process has no event
                await asyncio.sleep(READY_PAUSE_S)
    except TimeoutError:
        which = "no Kafka broker" if brokers == 1 else f"not all {brokers} Kafka brokers"
        raise LogUnavailable(f"{which} at {bootstrap} after {timeout_s:g} s") from None


def _format(install: KafkaInstall, settings_path: Path, cluster: str) -> None:
    arguments = ["format", "--ignore-formatted", "-t", cluster, "-c", str(settings_path)]
    done = subprocess.run(
        install.run("kafka.tools.StorageTool", *arguments),
        capture_output=True,
        text=True,
        timeout=FORMAT_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise _unusable(settings_path.parent, (done.stderr or done.stdout).strip()[-1_000:])


def _unusable(directory: Path, reason: str) -> StartupError:
    return StartupError(
        f"cannot format Kafka's data folder {directory}: {reason}. "
        "Check free disk space and permissions, then start again."
    )


def _refuse_foreign(directory: Path, node: Node, cluster: str) -> None:
    """Raise StartupError where the data in `directory` is not this node's."""
    marker = directory / MARKER_FILE
    # Missing only where the very first start was cut short after the format.
    version = marker.read_text().strip() if marker.exists() else jars.KAFKA_VERSION
    if version != jars.KAFKA_VERSION:
        raise StartupError(
            f"the data in {directory} is of Apache Kafka {version}; this release runs "
            f"{jars.KAFKA_VERSION}. Start it with the release that wrote it, "
            "or choose another data folder."
        )
    lines = (directory / "data" / META_FILE).read_text().splitlines()
    meta = dict(line.split("=", 1) for line in lines if "=" in line)
    for name, ours in (("cluster.id", cluster), ("node.id", str(node.node_id))):
        if meta.get(name) != ours:
            raise StartupError(
                f"the data in {directory} has {name} {meta.get(name)}, expected {ours}. "
                "It belongs to another cluster: choose another data folder."
            )


async def _answering(bootstrap: str) -> int:
    """Return how many brokers of the cluster are up, by the word of the one that answers first."""
    for server in bootstrap.split(","):
        host, _, port = server.rpartition(":")
        try:
            # Tried by hand first: aiokafka logs an error for each refused connection.
            async with asyncio.timeout(READY_TRY_TIMEOUT_S):
                _, connection = await asyncio.open_connection(host, int(port))
            connection.close()
        except (OSError, TimeoutError):
            continue
        return await _known_to(server)
    return 0


async def _known_to(server: str) -> int:
    client = AIOKafkaClient(
        bootstrap_servers=server,
        client_id="millstream-probe",
        request_timeout_ms=int(READY_TRY_TIMEOUT_S * 1_000),
    )
    try:
        async with asyncio.timeout(READY_TRY_TIMEOUT_S):
            await client.bootstrap()
            return len(client.cluster.brokers())
    except (KafkaError, TimeoutError):
        return 0
    finally:
        await client.close()


def _write_whole(path: Path, text: str) -> None:
    """Replace the file at once: a crash leaves the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)
