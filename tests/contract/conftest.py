"""The broker that the contract tests of the Kafka adapters share: started once a session."""

from collections.abc import Iterator

import pytest

from tests.contract.kafka_harness import running_kafka


@pytest.fixture(scope="session")
def kafka_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a running broker."""
    with running_kafka(tmp_path_factory.mktemp("kafka")) as bootstrap:
        yield bootstrap
