"""Totals stay exact whatever part of the changelogs a kill left behind."""

import asyncio
from asyncio import Future
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from infra.dead_letters import DeadLetters
from infra.memory import MemoryBroker
from infra.metrics import Metrics
from infra.ports import LogRecord, LogWriter
from infra.system import SystemClock
from schemas.codec import encode
from schemas.topics import USAGE
from schemas.usage import UsageRecorded
from streams.stream_app import entries
from streams.stream_app.agent import AgentDeps, UsageAgent, UsageTables
from streams.stream_app.confirmations import Confirmations
from streams.stream_app.expiry import SeenExpiry
from streams.stream_app.publisher import TotalsPublisher

Fate = Literal["acknowledged", "landed", "lost"]


def usage_of_request(request_id: str, org: str, tokens: int) -> UsageRecorded:
    """Return the usage of a request with `tokens` input and twice as many output tokens."""
    return UsageRecorded(
        request_id=request_id,
        org=org,
        workspace="default",
        key_id="key",
        user=None,
        alias="model",
        model="model",
        model_version="v1",
        pool="pool",
        region=None,
        rollout_arm=None,
        price_book_version=None,
        dialect="openai",
        accepted_at_ms=1,
        first_token_at_ms=2,
        ended_at_ms=3,
        input_tokens=tokens,
        cached_tokens=1,
        output_tokens=2 * tokens,
        cost_nano=0,
        stop_reason="stop",
        close_reason=None,
        stages=None,
    )


def record_of(
    partition: int, offset: int, value: UsageRecorded | bytes, append_time_ms: int = 1_000
) -> LogRecord:
    """Return a record of usage.v1."""
    return LogRecord(
        topic=USAGE,
        partition=partition,
        offset=offset,
        append_time_ms=append_time_ms,
        key=b"org",
        value=value if isinstance(value, bytes) else encode(value),
    )


@dataclass(slots=True)
class Write:
    """One change on its way to a changelog."""

    table: str
    key: bytes
    value: bytes
    acknowledged: Future[None]


class TableInMemory(dict[bytes, bytes]):
    """A table whose changes are noted as writes."""

    def __init__(self, name: str, writes: list[Write]) -> None:
        super().__init__()
        self._name, self._writes = name, writes

    def __setitem__(self, key: bytes, value: bytes) -> None:
        """Set an entry and note the write."""
        super().__setitem__(key, value)
        future: Future[None] = asyncio.get_running_loop().create_future()
        self._writes.append(Write(self._name, key, value, future))


class Platform:
    """One run of the agent, from the changelogs that it found."""

    def __init__(self, writer: LogWriter, changelogs: list[Write] | None = None) -> None:
        self.writes: list[Write] = []
        self.taken = 0
        self.totals = TableInMemory("totals", self.writes)
        self.seen = TableInMemory("seen", self.writes)
        self.confirmations = Confirmations()
        for write in changelogs or []:
            table = self.totals if write.table == "totals" else self.seen
            wins = entries.total_wins if write.table == "totals" else entries.seen_wins
            held = table.get(write.key)
            if held is None or wins(held, write.value):
                dict.__setitem__(table, write.key, write.value)
        deps = AgentDeps(
            confirmations=self.confirmations,
            expiry=SeenExpiry(),
            publisher=TotalsPublisher(writer),
            dead_letters=DeadLetters(writer, SystemClock(), "stream-app"),
            metrics=Metrics(),
        )
        tables = UsageTables(totals=self.totals, seen=self.seen, take_writes=self._take)
        self.agent = UsageAgent(deps, tables)
        self.agent.recovered()

    def sums(self) -> dict[tuple[int, str], tuple[int, int]]:
        """Return requests and input tokens by partition and org."""
        found = {}
        for key, value in self.totals.items():
            total = entries.unpack_total(value)
            assert total is not None
            found[entries.key_parts(key)] = (total.requests, total.input_tokens)
        return found

    def _take(self) -> list[Future[None]]:
        new = self.writes[self.taken :]
        self.taken = len(self.writes)
        return [write.acknowledged for write in new]


@dataclass(slots=True)
class Broker:
    """What outlives a kill: the source, the changelogs and the committed offsets."""

    source: dict[int, list[UsageRecorded]] = field(default_factory=dict)
    changelogs: list[Write] = field(default_factory=list)
    committed: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """One run that ends in a kill: how many records it handles, and what becomes of its writes."""

    records: int
    fates: list[Fate]
    shuffle: int


_REQUESTS = st.tuples(st.integers(0, 1), st.integers(0, 4))
_FATES: st.SearchStrategy[Fate] = st.sampled_from(["acknowledged", "landed", "lost"])
_RUNS = st.builds(
    Run,
    records=st.integers(0, 12),
    fates=st.lists(_FATES, min_size=24, max_size=24),
    shuffle=st.integers(0, 1_000),
)


@settings(max_examples=400, deadline=None)
@given(requests=st.lists(_REQUESTS, max_size=12), runs=st.lists(_RUNS, max_size=4))
def test_totals_are_exact_over_kills(requests: list[tuple[int, int]], runs: list[Run]) -> None:
    """Whatever subset of uncommitted writes to either changelog survives, in whatever order it is
    found, the final sums are those of the distinct requests."""
    asyncio.run(_kill_and_count(requests, runs))


async def _kill_and_count(requests: list[tuple[int, int]], runs: list[Run]) -> None:
    broker = Broker()
    for partition, number in requests:
        org = f"org-{number % 2}"
        usage = usage_of_request(f"{partition}-{number}", org, number + 1)
        broker.source.setdefault(partition, []).append(usage)
    writer = MemoryBroker(SystemClock()).writer("stream-app")
    for run in runs:
        await _run_and_kill(broker, writer, run)
    last = await _run_and_kill(broker, writer, Run(99, ["acknowledged"] * 24, 0))
    expected: dict[tuple[int, str], tuple[int, int]] = {}
    for partition, number in set(requests):
        key = (partition, f"org-{number % 2}")
        count, tokens = expected.get(key, (0, 0))
        expected[key] = (count + 1, tokens + number + 1)
    assert last.sums() == expected


async def _run_and_kill(broker: Broker, writer: LogWriter, run: Run) -> Platform:
    found = list(broker.changelogs)
    Random(run.shuffle).shuffle(found)
    platform = Platform(writer, found)
    left = run.records
    for partition, usages in broker.source.items():
        for offset in range(broker.committed.get(partition, 0), len(usages)):
            if left == 0:
                break
            left -= 1
            await platform.agent.handle(record_of(partition, offset, usages[offset]))
    fates = run.fates * (len(platform.writes) // len(run.fates) + 1)
    for write, fate in zip(platform.writes, fates, strict=False):
        if fate == "acknowledged":
            write.acknowledged.set_result(None)
        if fate != "lost":
            broker.changelogs.append(write)
    for partition, entry in platform.confirmations.advance().items():
        broker.committed[partition] = entry.next_offset
    return platform
