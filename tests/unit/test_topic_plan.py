"""What `apply` would do to the log, from wanted and existing topics alone."""

import asyncio
from dataclasses import replace

import pytest

from infra.apply import apply, look
from infra.control import ControlTail, ControlView
from infra.errors import StartupError
from infra.memory import MemoryBroker
from infra.system import SystemClock, SystemEntropy
from infra.topic_plan import (
    AlterTopic,
    AnnounceTopic,
    CreateTopic,
    ExistingTopic,
    RefuseTopic,
    plan,
    render,
    settings,
)
from schemas.topics import CONTROL, REPLIES, Topic, topics

WANTED = topics("pool")


def as_wanted() -> dict[str, ExistingTopic]:
    """Return every topic just as it should be."""
    return {
        topic.name: ExistingTopic(partitions=topic.partitions, settings=settings(topic))
        for topic in WANTED
    }


def test_an_empty_cluster_gets_everything_control_first() -> None:
    """All topics are made, the control topic first, an incarnation before its topic."""
    steps = plan(WANTED, {}, [])
    assert steps[0] == CreateTopic(topic=CONTROL, partitions=1, settings=settings(control_topic()))
    assert {step.topic for step in steps if isinstance(step, CreateTopic)} == {
        topic.name for topic in WANTED
    }
    kinds = [type(step) for step in steps if step.topic == REPLIES]
    assert kinds == [AnnounceTopic, CreateTopic]


def test_a_cluster_as_wanted_needs_nothing() -> None:
    """Nothing is left to do, and nothing is shown."""
    assert plan(WANTED, as_wanted(), [REPLIES]) == []
    assert render([]) == ""


def test_a_missing_incarnation_is_written() -> None:
    """A replies topic without an incarnation on the control topic gets one."""
    assert plan(WANTED, as_wanted(), []) == [AnnounceTopic(topic=REPLIES, partitions=4)]


def test_a_topic_made_again_gets_another_incarnation() -> None:
    """A replies topic that was deleted is announced again, though an old fact stands."""
    existing = as_wanted()
    del existing[REPLIES]
    steps = plan(WANTED, existing, [REPLIES])
    assert [type(step) for step in steps] == [AnnounceTopic, CreateTopic]


def test_only_differing_settings_are_altered() -> None:
    """A changed or unset setting is put right, others that somebody added are left."""
    existing = as_wanted()
    theirs = {**existing[REPLIES].settings, "retention.ms": "1000", "flush.ms": "5"}
    del theirs["segment.bytes"]
    existing[REPLIES] = replace(existing[REPLIES], settings=theirs)
    (step,) = plan(WANTED, existing, [REPLIES])
    assert isinstance(step, AlterTopic)
    assert set(step.after) == {"retention.ms", "segment.bytes"}
    assert step.before == {"retention.ms": "1000", "segment.bytes": None}
    assert "retention.ms from 1000 to" in render([step])


def test_another_partition_count_is_refused_by_name() -> None:
    """A topic with another number of partitions is neither altered nor made."""
    existing = as_wanted()
    existing[REPLIES] = replace(existing[REPLIES], partitions=5)
    steps = plan(WANTED, existing, [REPLIES])
    assert steps == [RefuseTopic(topic=REPLIES, found=5, wanted=4)]
    assert "replies.v1 has 5 partitions, expected 4" in render(steps)


def test_applying_twice_changes_nothing_the_second_time() -> None:
    """After `apply` nothing is missing, and the incarnation stays as it was."""
    asyncio.run(_apply_twice())


def test_a_refusal_changes_nothing() -> None:
    """One topic with another number of partitions keeps every other step from being taken."""
    asyncio.run(_apply_refused())


def control_topic() -> Topic:
    """Return the control topic's row."""
    (found,) = [topic for topic in WANTED if topic.name == CONTROL]
    return found


async def _apply_twice() -> None:
    broker = MemoryBroker(SystemClock())
    admin, reader, writer = broker.admin(), broker.reader("apply"), broker.writer("apply")
    await apply(await look(WANTED, admin, reader), admin, writer, SystemEntropy())
    assert await admin.topics() == {topic.name: topic.partitions for topic in WANTED}
    view = await ControlTail(broker.reader("check"), ControlView()).read_all()
    assert view.incarnation(REPLIES) is not None
    assert await look(WANTED, admin, broker.reader("again")) == []


async def _apply_refused() -> None:
    broker = MemoryBroker(SystemClock())
    admin, reader, writer = broker.admin(), broker.reader("apply"), broker.writer("apply")
    await admin.create(REPLIES, 9, {})
    steps = await look(WANTED, admin, reader)
    with pytest.raises(StartupError, match=r"replies\.v1 has 9 partitions"):
        await apply(steps, admin, writer, SystemEntropy())
    assert await admin.topics() == {REPLIES: 9}
