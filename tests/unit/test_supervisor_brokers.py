"""The embedded brokers' layout and the number that a data folder keeps."""

from pathlib import Path

import pytest

from infra.config import Config, load
from infra.errors import ConfigError, StartupError
from infra.kafka import jars
from infra.supervisor.brokers import bootstrap_of, lay_out_brokers, names_of, prepare_brokers
from infra.system import SystemEntropy


def test_each_broker_has_ports_of_its_own() -> None:
    """Three brokers listen at three addresses, all of which clients are told."""
    brokers = lay_out_brokers(Config(brokers=3, kafka_port=0), SystemEntropy())
    ports = {port for node in brokers for port in (node.port, node.controller_port)}
    assert len(ports) == 6
    assert names_of(brokers) == ["kafka-0", "kafka-1", "kafka-2"]
    assert bootstrap_of(brokers) == ",".join(f"127.0.0.1:{node.port}" for node in brokers)


@pytest.mark.parametrize(("kept", "wanted"), [("1", 3), (None, 3), ("3", 1)])
def test_a_folder_keeps_its_number_of_brokers(
    tmp_path: Path, kept: str | None, wanted: int
) -> None:
    """Another number is refused by name before anything is fetched or changed; a folder that is
    older than the note of it has one broker."""
    (tmp_path / "0").mkdir()
    if kept is not None:
        (tmp_path / "brokers").write_text(f"{kept}\n")
    before = sorted(tmp_path.rglob("*"))
    entropy = SystemEntropy()
    brokers = lay_out_brokers(Config(brokers=wanted, kafka_port=0), entropy)
    with pytest.raises(StartupError, match=f"was made for --brokers {kept or 1};"):
        prepare_brokers(
            brokers,
            tmp_path,
            cache_dir=tmp_path / f"kafka-{jars.KAFKA_VERSION}",
            environ={},
            entropy=entropy,
            say=lambda line: pytest.fail(line),
        )
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("value", ["0", "2", "4", "three"])
def test_a_number_of_brokers_without_a_better_majority_is_refused(value: str) -> None:
    """Two brokers outlive nobody's death, like one."""
    with pytest.raises(ConfigError, match="1, 3 or 5"):
        load({"MILLSTREAM_BROKERS": value})
