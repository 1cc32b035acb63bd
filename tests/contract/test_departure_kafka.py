"""Leaving a group for a dead member, on a real broker: its partitions move at once, records too."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid

from infra.kafka import KafkaAdmin, KafkaGroupReader, KafkaWriter
from infra.kafka.departure import leave_for
from infra.membership import Membership

SESSION_MS = 30_000
WITHIN_S = 3.0
PARTITIONS = 4
MEMBER = f"""
import asyncio, sys
from infra.kafka import KafkaGroupReader
async def main():
    member = KafkaGroupReader(
        sys.argv[1], group=sys.argv[2], client_id="doomed", session_timeout_ms={SESSION_MS},
        heartbeat_ms=100, rebalance_timeout_ms=5_000, on_joined=print,
    )
    await member.start()
    await member.join([sys.argv[2]])
    while True:
        await member.poll(timeout_ms=100, max_records=1)
asyncio.run(main())
"""


def test_a_dead_members_partitions_move_at_once(kafka_bootstrap: str) -> None:
    """After kill -9 and the notice the survivor reads the dead one's records within its next
    heartbeats, long before the session ends; the same notice again finds and disturbs nobody."""
    topic = f"departure-{uuid.uuid4().hex[:8]}"

    async def scenario() -> float:
        admin = KafkaAdmin(kafka_bootstrap)
        await admin.start()
        await admin.create(topic, PARTITIONS, {})
        await admin.close()
        writer = KafkaWriter(kafka_bootstrap, client_id="writer")
        await writer.start()
        for partition in range(PARTITIONS):
            await writer.send(topic, partition, b"unfinished")
        await writer.close()
        doomed = subprocess.Popen(  # noqa: ASYNC220  # a fork, before anything runs
            [sys.executable, "-u", "-c", MEMBER, kafka_bootstrap, topic],
            stdout=subprocess.PIPE,
            env=dict(os.environ),
        )
        assert doomed.stdout is not None
        survivor = member(kafka_bootstrap, topic)
        try:
            await asyncio.to_thread(doomed.stdout.readline)  # alone in the group
            await survivor.start()
            await survivor.join([topic])
            await poll_until(survivor, PARTITIONS // 2)
            had = survivor.assignment().partitions
            while await survivor.poll(timeout_ms=200, max_records=10):
                continue  # from here on it waits in an idle fetch
            line = await asyncio.to_thread(doomed.stdout.readline)
            dead = Membership(group=topic, member_id=line.decode().strip())
            doomed.send_signal(signal.SIGKILL)
            doomed.wait()
            began_s = time.monotonic()
            assert await leave_for(kafka_bootstrap, dead)
            unfinished = set(range(PARTITIONS)) - {p.partition for p in had}
            while unfinished:
                for record in await survivor.poll(timeout_ms=500, max_records=10):
                    unfinished.discard(record.partition)
            took_s = time.monotonic() - began_s
            epoch = survivor.assignment().epoch
            assert not await leave_for(kafka_bootstrap, dead)
            for _ in range(5):
                await survivor.poll(timeout_ms=100, max_records=1)
            assert survivor.assignment().epoch == epoch
            return took_s
        finally:
            if doomed.poll() is None:
                doomed.kill()
                doomed.wait()
            doomed.stdout.close()
            await survivor.leave()

    took_s = asyncio.run(scenario())
    print(f"the survivor read the last of them after {took_s * 1000:.0f} ms")
    assert took_s < WITHIN_S


def member(bootstrap: str, topic: str) -> KafkaGroupReader:
    """Return a group member with quick heartbeats and a long session."""
    return KafkaGroupReader(
        bootstrap,
        group=topic,
        client_id="survivor",
        session_timeout_ms=SESSION_MS,
        heartbeat_ms=100,
        rebalance_timeout_ms=5_000,
    )


async def poll_until(reader: KafkaGroupReader, partitions: int) -> None:
    """Poll until so many partitions are assigned."""
    async with asyncio.timeout(SESSION_MS / 1000):
        while len(reader.assignment().partitions) != partitions:
            await reader.poll(timeout_ms=100, max_records=1)
