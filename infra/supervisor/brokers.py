"""The embedded brokers of one platform: where they listen, and their folders made ready.

Owns DIR/kafka: one folder a broker, the cluster's id and how many brokers there are. That number
stays what it was at the first start: the controllers' votes and the copies of every partition hang
on it. Keeping the brokers running is `nursery.py`'s.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from infra.config import Config
from infra.errors import StartupError
from infra.kafka import embedded
from infra.kafka.properties import Node
from infra.ports import Entropy
from infra.supervisor.child import ProcessSpec
from infra.supervisor.plan import kafka_service
from infra.supervisor.sockets import claim_port, free_port

__all__ = ["bootstrap_of", "lay_out_brokers", "names_of", "prepare_brokers"]

_LOOPBACK = "127.0.0.1"
_CLUSTER_FILE = "cluster-id"
_COUNT_FILE = "brokers"


def lay_out_brokers(config: Config, entropy: Entropy) -> tuple[Node, ...]:
    """Choose and claim the ports of `config.brokers` brokers; the first one's is `--kafka-port`.

    Raises: StartupError where that one is taken.
    """
    first = claim_port(_LOOPBACK, config.kafka_port, "--kafka-port", entropy)
    return tuple(
        Node(
            node_id=number,
            host=_LOOPBACK,
            port=free_port(entropy) if number else first,
            controller_port=free_port(entropy),
        )
        for number in range(config.brokers)
    )


def bootstrap_of(brokers: tuple[Node, ...]) -> str:
    """Return the addresses of all brokers, as clients take them."""
    return ",".join(f"{node.host}:{node.port}" for node in brokers)


def names_of(brokers: tuple[Node, ...]) -> list[str]:
    """Return the brokers' names as processes."""
    return [f"kafka-{node.node_id}" for node in brokers]


def prepare_brokers(
    brokers: tuple[Node, ...],
    directory: Path,
    *,
    cache_dir: Path,
    environ: Mapping[str, str],
    entropy: Entropy,
    say: Callable[[str], None],
) -> list[ProcessSpec]:
    """Fetch Kafka, format each broker's folder and describe its process; blocks: use a thread.

    Raises: StartupError where `directory` was made for another number of brokers; nothing is
    changed then.
    """
    _keep_count(directory, len(brokers))
    install = embedded.prepare(cache_dir, say)
    cluster = embedded.cluster_id(directory / _CLUSTER_FILE, entropy)
    specs = []
    for name, node in zip(names_of(brokers), brokers, strict=True):
        settings = embedded.format_storage(
            install,
            node=node,
            nodes=brokers,
            directory=directory / str(node.node_id),
            cluster=cluster,
        )
        command = embedded.command(install, settings)
        others = len(brokers) > 1
        specs.append(kafka_service(name, command, node.port, environ, has_others=others))
    return specs


def _keep_count(directory: Path, count: int) -> None:
    """Note the number of brokers the first time. Raises StartupError where it was another one."""
    kept, wanted = directory / _COUNT_FILE, str(count)
    if kept.exists():
        made_for = kept.read_text().strip()
    else:  # a folder older than this file has one broker
        made_for = "1" if (directory / "0").exists() else wanted
    if made_for != wanted:
        raise StartupError(
            f"the log in {directory} was made for --brokers {made_for}; its copies and votes "
            f"cannot be spread over {wanted} afterwards: start with --brokers {made_for}, or give "
            "--data a new folder"
        )
    directory.mkdir(parents=True, exist_ok=True)
    partial = kept.with_name(f".{kept.name}.partial")
    partial.write_text(f"{wanted}\n")
    partial.replace(kept)
