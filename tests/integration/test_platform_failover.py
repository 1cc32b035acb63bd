"""Two gateways and two workers: a killed worker costs its streams a pause and nothing else, and a
rolling restart fails nobody."""

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from infra.bench.starts import StartTail
from infra.bench.statistics import percentile
from infra.bench.watched import pause_over
from tests.integration.load import Load, ask, sdks
from tests.integration.platform import SOAK, Platform, eventually
from tests.integration.watched_streams import (
    PATHS,
    WatchedStream,
    busiest_worker,
    http_of,
    signal_process,
    wait_back,
)

STREAMS = 16
KILLS = 20 if SOAK else 2
TOKENS = 400
BACK_WITHIN_S = 120.0
PAUSE_S_MAX = 3.0
"""Half of a worker's session: longer means that nobody told Kafka of the death."""
LONG_TOKENS = 600
"""About 3 s: longer than a worker of this platform drains, shorter than a gateway does."""
RESTARTED = ("gateway-0", "worker-0", "gateway-1", "worker-1")


def streams_of(tokens: int) -> list[WatchedStream]:
    """Return streams of both dialects, each with a prompt and a seed of its own."""
    return [
        WatchedStream(
            path=PATHS[number % 2],
            body={
                "model": "smollm2-135m-instruct",
                "messages": [{"role": "user", "content": f"Story {number} of many, go on"}],
                "max_tokens": tokens,
                "ignore_eos": True,
                "seed": number,
            },
        )
        for number in range(STREAMS)
    ]


async def follow_all(pair: Platform, streams: Sequence[WatchedStream]) -> None:
    """Let all run to their ends."""
    async with http_of(pair) as client:
        await asyncio.gather(*(stream.follow(client, pair.key) for stream in streams))
    for stream in streams:
        stream.check_whole()


def test_kill_of_a_worker_moves_its_streams_to_the_other(pair: Platform) -> None:
    """After kill -9 of the busier of two workers at a random moment every stream is, to the letter,
    the undisturbed one; each is metered once; the death notice keeps the pause short."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    undisturbed = streams_of(TOKENS)
    asyncio.run(follow_all(pair, undisturbed))
    pauses_s: list[float] = []

    async def killed() -> list[WatchedStream]:
        async with starts_of(pair) as tail:
            return await kill_one(tail)

    async def kill_one(tail: StartTail) -> list[WatchedStream]:
        streams = streams_of(TOKENS)
        running = asyncio.create_task(follow_all(pair, streams))
        while not all(stream.events for stream in streams):  # noqa: ASYNC110  # many events
            await asyncio.sleep(0.01)
        await asyncio.sleep(rng.uniform(0.0, 1.0))
        victim = busiest_worker(pair)
        pid = signal_process(pair, victim, signal.SIGKILL)
        killed_s = time.perf_counter()
        await running
        workers = await tail.read()
        moved = [
            stream
            for stream in streams
            if len(found := workers[stream.request_id]) > 1 and found[0].startswith(f"{victim}/")
        ]
        assert moved, "the victim served some"
        pauses_s.extend(pause_over(stream.arrivals_s, killed_s) for stream in moved)
        await asyncio.to_thread(wait_back, pair, victim, pid, BACK_WITHIN_S)
        return streams

    for _ in range(KILLS):
        streams = asyncio.run(killed())
        assert [s.text for s in streams] == [s.text for s in undisturbed]
        check_metered(pair, streams, TOKENS)
    middle_s, longest_s = percentile(pauses_s, 0.5), max(pauses_s)
    print(f"{len(pauses_s)} streams moved: pause p50 {middle_s:.3f} s, longest {longest_s:.3f} s")
    assert longest_s < PAUSE_S_MAX
    pair.check_audit()


def test_a_rolling_restart_fails_no_request(pair: Platform) -> None:
    """SIGTERM to two gateways and two workers in turn, under 16 open streams and new requests: none
    fails, replies longer than a worker's drain move and stay what they were."""
    undisturbed = streams_of(LONG_TOKENS)
    asyncio.run(follow_all(pair, undisturbed))
    texts = [stream.text for stream in undisturbed]
    ended: list[WatchedStream] = []

    async def scenario() -> tuple[Load, int]:
        stopping = asyncio.Event()

        async def keep_open(number: int) -> None:
            while not stopping.is_set():
                stream = streams_of(LONG_TOKENS)[number]
                async with http_of(pair) as client:
                    await stream.follow(client, pair.key)
                stream.check_whole()
                assert stream.text == texts[number]
                ended.append(stream)

        async with starts_of(pair) as tail, sdks(pair.url, pair.key) as clients:
            load = Load(clients)
            async with asyncio.TaskGroup() as group:
                for number in range(STREAMS):
                    group.create_task(keep_open(number))
                for _ in range(4):
                    group.create_task(load.send_for_ever())
                await asyncio.sleep(1)
                for name in RESTARTED:
                    pid = signal_process(pair, name, signal.SIGTERM)
                    back_s = await asyncio.to_thread(wait_back, pair, name, pid, BACK_WITHIN_S)
                    print(f"{name}: stopped and ready again within {back_s:.1f} s")
                stopping.set()
                load.stop()
            workers = await tail.read()
        return load, sum(len(found) > 1 for found in workers.values())

    load, moved = asyncio.run(scenario())
    print(f"{len(ended)} long streams, {len(load.finished)} requests; {moved} replies moved")
    assert load.failed == []
    stopped = [line for line in pair.output.splitlines() if "ended (exit status" in line]
    assert len(stopped) >= len(RESTARTED)
    assert all("(exit status 0)" in line for line in stopped), stopped
    assert load.finished and moved
    check_metered(pair, ended, LONG_TOKENS)
    pair.check_audit()


def test_a_killed_supervisor_leaves_no_member_to_wait_for(pair: Platform) -> None:
    """The next `up` tells Kafka of workers that died with the last one: requests are served long
    before their sessions would have ended."""
    assert pair.child is not None
    pair.child.kill()
    pair.child.wait()
    pair.up()

    async def ask_one() -> float:
        async with sdks(pair.url, pair.key) as clients:
            began_s = time.monotonic()
            await ask(clients, "openai", "Hello", stream=False, max_tokens=5)
            return time.monotonic() - began_s

    took_s = asyncio.run(ask_one())
    print(f"ready after {pair.ready_after_s:.1f} s, then an answer in {took_s:.2f} s")
    assert took_s < PAUSE_S_MAX


@asynccontextmanager
async def starts_of(pair: Platform) -> AsyncIterator[StartTail]:
    """Read who starts which reply from now on."""
    tail = StartTail(pair.shown["endpoints"]["kafka"])
    await tail.start()
    try:
        yield tail
    finally:
        await tail.close()


def check_metered(pair: Platform, streams: Sequence[WatchedStream], tokens: int) -> None:
    """Check that each reply has one row with all its tokens."""
    ids = [stream.request_id for stream in streams]
    assert len(set(ids)) == len(ids)
    eventually(lambda: len(pair.usage_of(ids)) == len(ids), 10.0, "all are metered")
    assert {row[1] for row in pair.usage_of(ids).values()} == {tokens}
