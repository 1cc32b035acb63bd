"""The embedded broker's settings, rendered."""

from pathlib import Path

from infra.kafka.properties import Node, render_properties
from schemas import limits


def rendered(count: int) -> dict[str, str]:
    """Return the settings of the first of `count` brokers."""
    nodes = [
        Node(node_id=index, host="127.0.0.1", port=1_000 + index, controller_port=2_000 + index)
        for index in range(count)
    ]
    text = render_properties(node=nodes[0], nodes=nodes, data_dir=Path("/data/kafka"))
    return dict(line.split("=", 1) for line in text.splitlines())


def test_one_broker_keeps_one_copy_and_takes_our_largest_event() -> None:
    """A lone broker replicates to nobody, and its message limit is the platform's."""
    settings = rendered(1)
    assert settings["default.replication.factor"] == "1"
    assert settings["min.insync.replicas"] == "1"
    assert settings["message.max.bytes"] == str(limits.KAFKA_MESSAGE_BYTES_MAX)
    assert settings["log.dirs"] == "/data/kafka"
    assert settings["advertised.listeners"] == "PLAINTEXT://127.0.0.1:1000"


def test_three_brokers_survive_the_loss_of_one() -> None:
    """Three brokers hold three copies; a record is acknowledged once two have it."""
    settings = rendered(3)
    assert settings["default.replication.factor"] == "3"
    assert settings["min.insync.replicas"] == "2"
    assert settings["controller.quorum.voters"] == (
        "0@127.0.0.1:2000,1@127.0.0.1:2001,2@127.0.0.1:2002"
    )


def test_a_dead_controller_and_broker_is_noticed_within_clients_patience() -> None:
    """The election of a controller and the end of a session together stay well below 3 s."""
    settings = rendered(3)
    waits = ("controller.quorum.fetch.timeout.ms", "broker.session.timeout.ms")
    assert sum(int(settings[name]) for name in waits) <= 2_000
    assert int(settings["broker.heartbeat.interval.ms"]) * 4 < int(settings[waits[1]])
    assert int(settings["replica.fetch.backoff.ms"]) <= 100  # comes on top of it


def test_nothing_happens_behind_the_platforms_back() -> None:
    """No topic is made by use, no unclean leader is elected, times are the broker's."""
    settings = rendered(1)
    assert settings["auto.create.topics.enable"] == "false"
    assert settings["unclean.leader.election.enable"] == "false"
    assert settings["log.message.timestamp.type"] == "LogAppendTime"
