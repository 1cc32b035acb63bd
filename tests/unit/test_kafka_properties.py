"""The embedded broker's settings, rendered."""

import itertools
from pathlib import Path

from infra.kafka.properties import Node, render_properties
from schemas import limits


def rendered(count: int, which: int = 0) -> dict[str, str]:
    """Return the settings of one of `count` brokers."""
    nodes = [
        Node(node_id=index, host="127.0.0.1", port=1_000 + index, controller_port=2_000 + index)
        for index in range(count)
    ]
    text = render_properties(node=nodes[which], nodes=nodes, data_dir=Path("/data/kafka"))
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


def test_followers_of_a_controller_hear_news_well_within_their_patience() -> None:
    """It answers a fetch at the latest after 500 ms, without news: there has to be some before."""
    for which in range(3):
        settings = rendered(3, which)
        news_ms = int(settings["metadata.max.idle.interval.ms"])
        assert 0 < news_ms <= int(settings["controller.quorum.fetch.timeout.ms"]) // 4


def test_no_two_followers_give_a_controller_up_at_the_same_moment() -> None:
    """Else each votes for itself; apart by more than a vote takes, one is elected at once."""
    patience = sorted(
        int(rendered(3, which)["controller.quorum.fetch.timeout.ms"]) for which in range(3)
    )
    assert all(later - sooner >= 100 for sooner, later in itertools.pairwise(patience))


def test_a_lone_broker_writes_no_signs_of_life() -> None:
    """Nobody follows it, and each costs a write and a sync."""
    assert rendered(1)["metadata.max.idle.interval.ms"] == "0"


def test_nothing_happens_behind_the_platforms_back() -> None:
    """No topic is made by use, no unclean leader is elected, times are the broker's."""
    settings = rendered(1)
    assert settings["auto.create.topics.enable"] == "false"
    assert settings["unclean.leader.election.enable"] == "false"
    assert settings["log.message.timestamp.type"] == "LogAppendTime"
