"""The control view, its tail, and API keys."""

import asyncio

import pytest

from infra.control import ControlTail, ControlView
from infra.keys import InvalidName, create_key, find_key, hash_secret
from infra.memory import MemoryBroker
from infra.ports import LogRecord
from infra.system import SystemClock, SystemEntropy
from schemas.codec import encode
from schemas.operations import ControlRecord, KeyRevoked, TopicCreated
from schemas.topics import CONTROL

CLOCK, ENTROPY = SystemClock(), SystemEntropy()


def test_a_key_authenticates_until_it_is_revoked() -> None:
    """A created key is found by its secret alone; after its revocation it is not."""
    secret, created = create_key(entropy=ENTROPY, clock=CLOCK, org="acme")
    view = ControlView()
    view.apply(ControlRecord(key_created=created))
    assert find_key(secret, view.keys) == created
    assert find_key(secret + "x", view.keys) is None
    assert find_key("", view.keys) is None
    view.apply(ControlRecord(key_revoked=KeyRevoked(key_id=created.key_id, revoked_ms=5)))
    assert find_key(secret, view.keys) is None
    assert view.created[created.key_id] == created and view.revoked_ms(created.key_id) == 5


def test_a_revoked_key_id_never_authenticates_again() -> None:
    """Order on the log does not bring a revoked key back."""
    _, created = create_key(entropy=ENTROPY, clock=CLOCK, org="acme")
    view = ControlView()
    view.apply(ControlRecord(key_revoked=KeyRevoked(key_id=created.key_id, revoked_ms=5)))
    view.apply(ControlRecord(key_created=created))
    assert view.keys == {}


def test_a_secret_has_its_form_and_only_its_hash_is_kept() -> None:
    """Secrets are sk-ms- and 43 base62 characters, all different; the event holds the SHA-256."""
    made = [create_key(entropy=ENTROPY, clock=CLOCK, org="acme") for _ in range(50)]
    assert len({secret for secret, _ in made}) == 50
    assert len({key.key_id for _, key in made}) == 50
    for secret, key in made:
        assert secret.startswith("sk-ms-") and len(secret) == 6 + 43
        assert key.secret_sha256 == hash_secret(secret)
        assert secret not in repr(key)


def test_the_newest_incarnation_of_a_topic_is_known() -> None:
    """A topic made again has the number of its last making; an unknown one has none."""
    view = ControlView()
    for incarnation in (1, 2):
        view.apply(
            ControlRecord(
                topic_created=TopicCreated(topic="t", partitions=1, incarnation=incarnation)
            )
        )
    assert view.incarnation("t") == 2 and view.incarnation("other") is None


def test_the_tail_catches_up_then_follows_and_buries_what_it_cannot_read() -> None:
    """Ready only after the end seen at start; later facts apply; a bad record stops nothing."""

    async def scenario() -> None:
        broker = MemoryBroker(CLOCK)
        broker.create_topic(CONTROL, 1, {})
        writer, view = broker.writer("operator"), ControlView()
        secret, created = create_key(entropy=ENTROPY, clock=CLOCK, org="acme")
        await writer.send(CONTROL, 0, b"nonsense")
        await writer.send(CONTROL, 0, encode(ControlRecord(key_created=created)))
        buried: list[str] = []

        async def bury(record: LogRecord, reason: str) -> None:
            buried.append(f"{record.offset} {reason}")

        tail = ControlTail(broker.reader(), view, bury)
        assert not tail.caught_up
        await tail.read_all()
        assert tail.caught_up and find_key(secret, view.keys) and len(buried) == 1
        gone = KeyRevoked(key_id=created.key_id, revoked_ms=1)
        await writer.send(CONTROL, 0, encode(ControlRecord(key_revoked=gone)))
        await tail.run_once()
        assert find_key(secret, view.keys) is None

    asyncio.run(scenario())


def test_an_empty_control_topic_is_caught_up_at_once() -> None:
    """Nothing to read means nothing to wait for."""

    async def scenario() -> None:
        broker = MemoryBroker(CLOCK)
        broker.create_topic(CONTROL, 1, {})
        view = await ControlTail(broker.reader(), ControlView()).read_all()
        assert view.keys == {}

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["", "evil\r\nx-injected: 1", "a b", "日本", "-x", "x" * 65])
def test_orgs_are_plain_names(name: str) -> None:
    """An org goes into headers, log lines and SQL: anything but a plain name is refused."""
    with pytest.raises(InvalidName, match="org"):
        create_key(entropy=ENTROPY, clock=CLOCK, org=name)
