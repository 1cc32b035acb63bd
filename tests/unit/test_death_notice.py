"""Notes of memberships, and the notices that the supervisor makes of them."""

import asyncio
from pathlib import Path

import pytest

from infra import membership
from infra.errors import LogUnavailable
from infra.membership import Membership
from infra.supervisor.death_notice import DeathNotices
from infra.supervisor.priority import GENTLE, GENTLE_S, GENTLEST, GENTLEST_S, NORMAL, niceness

MEMBER = Membership(group="workers.m", member_id="worker-0-1")


def test_a_note_is_taken_once(tmp_path: Path) -> None:
    """What a process noted last is found when it dies, and not again after that."""
    path = membership.path_of(tmp_path, "worker-0")
    path.parent.mkdir()
    membership.note(path, Membership(group="workers.m", member_id="older"))
    membership.note(path, MEMBER)
    assert membership.left_behind(path.parent) == ("worker-0",)
    assert membership.take(path) == MEMBER
    assert membership.take(path) is None
    assert membership.left_behind(path.parent) == ()


def test_a_member_that_left_leaves_no_note(tmp_path: Path) -> None:
    """An orderly stop needs no notice."""
    path = membership.path_of(tmp_path, "worker-0")
    path.parent.mkdir()
    membership.note(path, MEMBER)
    membership.forget(path)
    assert membership.take(path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"group": "g"}', '"x"'])
def test_a_note_that_is_none_is_no_membership(tmp_path: Path, text: str) -> None:
    """Whatever else lies there is removed and says nothing."""
    path = tmp_path / "worker-0.member"
    path.write_text(text)
    assert membership.take(path) is None
    assert not path.exists()


def test_without_a_supervisors_folder_nothing_is_noted(tmp_path: Path) -> None:
    """A worker that runs by itself needs no folder."""
    path = membership.path_of(tmp_path / "none", "worker-0")
    membership.note(path, MEMBER)
    membership.forget(path)
    assert not path.parent.exists()


def test_the_notice_names_the_dead_member_only(tmp_path: Path) -> None:
    """A death is told once, repeated while nobody can be told; a process without a note is not."""
    left: list[Membership] = []
    tries = iter([LogUnavailable("no broker"), None])

    async def leave(dead: Membership) -> bool:
        if (error := next(tries)) is not None:
            raise error
        left.append(dead)
        return True

    async def scenario() -> None:
        notices = DeathNotices(tmp_path, leave, pause_s=0.001)
        path = membership.path_of(tmp_path, "worker-0")
        path.parent.mkdir()
        membership.note(path, MEMBER)
        notices.process_ended("worker-1")
        notices.all_ended()
        notices.process_ended("worker-0")  # its note is taken already
        while not left:  # noqa: ASYNC110  # a fake tells nobody
            await asyncio.sleep(0.001)
        await notices.stop()

    asyncio.run(scenario())
    assert left == [MEMBER]


def test_a_notice_that_cannot_be_sent_ends_with_the_platform(tmp_path: Path) -> None:
    """Stopping does not wait for a log that is away."""

    async def leave(dead: Membership) -> bool:
        raise LogUnavailable(f"no broker for {dead.member_id}")

    async def scenario() -> None:
        notices = DeathNotices(tmp_path, leave)
        path = membership.path_of(tmp_path, "worker-0")
        path.parent.mkdir()
        membership.note(path, MEMBER)
        notices.process_ended("worker-0")
        await asyncio.sleep(0.01)
        async with asyncio.timeout(1):
            await notices.stop()

    asyncio.run(scenario())


def test_a_restart_loads_gently_and_not_for_ever() -> None:
    """First it leaves the processor to whoever takes over, then it takes a share, then its own."""
    assert niceness(0.0) == GENTLEST
    assert niceness(GENTLEST_S) == GENTLE
    assert niceness(GENTLE_S) == NORMAL
