"""The embedded broker's settings as text: a pure function of where it lives.

Every setting that matters is written out with its reason. Called by `infra/kafka/embedded.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from schemas import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One broker of an embedded cluster; each is a controller too."""

    node_id: int
    host: str
    port: int
    controller_port: int


def render_properties(*, node: Node, nodes: Sequence[Node], data_dir: Path) -> str:
    """Return the `server.properties` of `node` in the cluster of `nodes`, its log in `data_dir`."""
    assert node in nodes
    return "".join(f"{name}={value}\n" for name, value in _settings(node, nodes, data_dir).items())


def _settings(node: Node, nodes: Sequence[Node], data_dir: Path) -> Mapping[str, object]:
    copies = min(3, len(nodes))
    in_sync = max(1, copies - 1)
    voters = ",".join(f"{peer.node_id}@{peer.host}:{peer.controller_port}" for peer in nodes)
    return {
        "process.roles": "broker,controller",
        "node.id": node.node_id,
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{node.host}:{node.port},"
        f"CONTROLLER://{node.host}:{node.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{node.host}:{node.port}",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": data_dir,
        # A topic with a wrong name must be an error: `millstream apply` makes every topic.
        "auto.create.topics.enable": "false",
        # All times that decisions rest on are the broker's (design rule 6.4).
        "log.message.timestamp.type": "LogAppendTime",
        "message.max.bytes": limits.KAFKA_MESSAGE_BYTES_MAX,
        "replica.fetch.max.bytes": limits.KAFKA_MESSAGE_BYTES_MAX,
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        # What was acknowledged is never given up for availability.
        "unclean.leader.election.enable": "false",
        # No log.flush.*: Kafka's durability is replication, and the page cache outlives kill -9.
        "offsets.topic.replication.factor": copies,
        # 50 by default, each with files and a loader; a handful of groups needs no more than these.
        "offsets.topic.num.partitions": 4,
        "offsets.retention.minutes": limits.OFFSETS_RETENTION_MS // 60_000,
        # Nobody uses transactions or share groups (design rule 6.12); their topics are never made.
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        # The first worker need not wait for others to join.
        "group.initial.rebalance.delay.ms": 0,
        # Tests and fast failure detection want less than the default of 6 s.
        "group.min.session.timeout.ms": 300,
        **_vigilance(node, len(nodes)),
        # Says good-bye on SIGTERM, so that the next start need not wait for the old session's end.
        "controlled.shutdown.enable": "true",
        # Threads for a small machine; the defaults are for a server of its own.
        "num.network.threads": 1,
        "num.io.threads": 2,
        "num.recovery.threads.per.data.dir": 2,
        "log.cleaner.threads": 1,
        "background.threads": 2,
        # 128 MB by default, allocated at the start out of a heap of 512.
        "log.cleaner.dedupe.buffer.size": 16 * limits.MIB,
    }


def _vigilance(node: Node, brokers: int) -> Mapping[str, object]:
    """Return how soon a dead broker is noticed: its sessions, and the controllers' among them."""
    if brokers == 1:
        # A killed broker is fenced, and comes back, after this instead of 9 s. There is nobody to
        # send signs of life to.
        return {
            "broker.session.timeout.ms": 2_000,
            "broker.heartbeat.interval.ms": 500,
            "metadata.max.idle.interval.ms": 0,
        }
    # Whoever dies may be the active controller: first the others elect a new one (fetch and
    # election time-outs), which then gives every broker a fresh session before it fences the dead
    # one and moves its partitions. The sum has to stay below the 3 s that clients are promised.
    return {
        "broker.session.timeout.ms": 600,
        "broker.heartbeat.interval.ms": 140,
        # The active controller answers its followers' fetches when there is something to fetch, or
        # after 500 ms: without a no-op record (500 ms apart by default) well within the fetch
        # time-out they would time out, and elect another, whenever there is no news.
        "metadata.max.idle.interval.ms": 100,
        # Answered at the same moments, all followers would time out at the same one, stand against
        # each other, split the votes and wait out an election time-out. With pre-votes (KIP-996)
        # the first alone is refused and the second elected at once.
        "controller.quorum.fetch.timeout.ms": 400 + 100 * (node.node_id % brokers),
        "controller.quorum.election.timeout.ms": 300,
        "controller.quorum.election.backoff.max.ms": 150,
        "controller.quorum.request.timeout.ms": 1_500,
        # A follower that asks a new leader before that one knows of its office asks again so soon;
        # until then nothing of the partition is acknowledged. The default is 1 s.
        "replica.fetch.backoff.ms": 100,
        # A follower that lives but does not follow holds up acknowledgements for this long.
        "replica.lag.time.max.ms": 3_000,
    }
