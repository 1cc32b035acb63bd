"""Lanes: which polled records are taken after the group has moved a position."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import cast

from engine_workers.bounds import WorkerBounds
from engine_workers.jobs import Jobs
from engine_workers.lanes import Lanes
from infra.metrics import Metrics
from infra.ports import Assignment, GroupReader, LogRecord, TopicPartition
from schemas.codec import encode
from schemas.requests import RequestAccepted
from tests.builders import request

TOPIC = "requests.pool.interactive.v1"
LANE = TopicPartition(TOPIC, 0)


class ScriptedGroup:
    """A group member whose polls bring what a test says, each under an epoch."""

    def __init__(self, *polls: tuple[int, Sequence[int]]) -> None:
        self._polls = list(polls)
        self._epoch = 0
        self.sought: list[int] = []
        self.commits: list[dict[TopicPartition, int]] = []

    async def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """Note what is committed."""
        self.commits.append(dict(next_offsets))

    def assignment(self) -> Assignment:
        """Return the assignment of the newest poll's epoch."""
        return Assignment(self._epoch, frozenset({LANE}))

    async def poll(self, *, timeout_ms: int, max_records: int) -> Sequence[LogRecord]:
        """Return the next prepared records."""
        self._epoch, offsets = self._polls.pop(0)
        return [LogRecord(TOPIC, 0, offset, 1, None, encode(request())) for offset in offsets]

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Note the offset."""
        self.sought.append(offset)


class NotedJobs:
    """Jobs that only note which offsets they are given."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def __len__(self) -> int:
        return 0

    def doubted_lanes(self) -> set[int]:
        """Doubt nothing."""
        return set()

    def on_committed(self, lanes: Collection[int], commit_number: int) -> None:
        """Wait for no proof."""

    def take(self, request: RequestAccepted, lane: int, offset: int, append_time_ms: int) -> None:
        """Note the offset."""
        self.offsets.append(offset)


def lanes_of(group: ScriptedGroup, jobs: NotedJobs) -> Lanes:
    """Return lanes over these."""

    async def bury(record: LogRecord, reason: str) -> bool:
        return True

    return Lanes(
        topic=TOPIC,
        group=cast(GroupReader, group),
        jobs=cast(Jobs, jobs),
        metrics=Metrics(),
        bury=bury,
        bounds=WorkerBounds(),
    )


def taken(*polls: tuple[int, Sequence[int]]) -> list[int]:
    """Return the offsets that are taken in as many turns as there are polls."""
    group, jobs = ScriptedGroup(*polls), NotedJobs()

    async def turns() -> None:
        lanes = lanes_of(group, jobs)
        for _ in polls:
            await lanes.run_once()

    asyncio.run(turns())
    return jobs.offsets


def test_records_behind_a_refused_one_are_no_second_offer() -> None:
    """A position moved ahead brings several records at once: all wait for what lies before."""
    assert taken((1, [0]), (1, [3, 4, 5]), (1, [1, 2, 3, 4, 5])) == [0, 1, 2, 3, 4, 5]


def test_a_jump_after_each_of_two_rebalances_is_no_gap() -> None:
    """Each rebalance may move the position ahead again; only the log itself proves a gap."""
    assert taken((1, [0]), (2, [3]), (3, [3]), (3, [1, 2, 3])) == [0, 1, 2, 3]


def test_a_gap_that_the_log_insists_on_is_passed() -> None:
    """What retention removed never comes: the second offer without a rebalance is taken."""
    assert taken((1, [0]), (1, [3]), (1, [3, 4])) == [0, 3, 4]


def test_a_kept_lane_is_committed_anew_after_a_rebalance() -> None:
    """Another member may have moved its commit back meanwhile; an idle lane must not stay there."""
    group = ScriptedGroup((1, [0]), (1, []), (2, []), (2, []))

    async def turns() -> None:
        lanes = lanes_of(group, NotedJobs())
        for _ in range(4):
            await lanes.run_once()
            lanes.finish(0, [0])
            await lanes.commit_once()

    asyncio.run(turns())
    assert group.commits == [{LANE: 1}, {LANE: 1}]
