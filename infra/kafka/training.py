"""One training run of a throw-away broker, which leaves the start-up cache of `infra/kafka/jvm.py`.

Owns the throw-away broker and what is asked of it: enough that the classes of a produce, a fetch
and a group are in the cache too. A failed run costs quick starts, nothing else.
"""

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from infra.errors import InfraError
from infra.kafka.admin import KafkaAdmin
from infra.kafka.group import KafkaGroupReader
from infra.kafka.jvm import KafkaInstall
from infra.kafka.properties import Node, render_properties
from infra.kafka.writer import KafkaWriter
from infra.ports import TopicPartition

READY_TIMEOUT_S = 60.0
# The JVM writes the cache at its end: 6 s on two cores.
WRITE_TIMEOUT_S = 120.0
EXERCISE_TIMEOUT_S = 30.0

_CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
_PLACE = TopicPartition("training", 0)

Format = Callable[[KafkaInstall, Path, str], None]
WaitReady = Callable[[str, float], Awaitable[None]]


def train(install: KafkaInstall, format_data: Format, wait_ready: WaitReady) -> None:
    """Write the start-up cache, or leave none."""
    scratch = install.start_cache.parent / f"training-{os.getpid()}"
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        made = _run(install, scratch, format_data, wait_ready)
        if made is not None:
            made.replace(install.start_cache)
    except (InfraError, OSError, subprocess.TimeoutExpired, TimeoutError) as error:
        structlog.get_logger("infra.kafka").warning("kafka_start_cache_missing", error=str(error))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(
    install: KafkaInstall, scratch: Path, format_data: Format, wait_ready: WaitReady
) -> Path | None:
    port, controller_port = _free_ports()
    node = Node(node_id=1, host="127.0.0.1", port=port, controller_port=controller_port)
    settings = scratch / "server.properties"
    settings.write_text(render_properties(node=node, nodes=[node], data_dir=scratch / "data"))
    format_data(install, settings, _CLUSTER)
    output = scratch / "cache.aot"
    broker = subprocess.Popen(
        install.train(output, "kafka.Kafka", str(settings)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for us; the broker is ended below
    )
    try:
        asyncio.run(_exercise(f"127.0.0.1:{port}", wait_ready))
        broker.terminate()
        broker.wait(WRITE_TIMEOUT_S)
    finally:
        broker.kill()
        broker.wait()
    return output if output.exists() else None


async def _exercise(bootstrap: str, wait_ready: WaitReady) -> None:
    await wait_ready(bootstrap, READY_TIMEOUT_S)
    admin = KafkaAdmin(bootstrap)
    writer = KafkaWriter(bootstrap, client_id="training")
    member = KafkaGroupReader(
        bootstrap,
        group="training",
        client_id="training",
        session_timeout_ms=10_000,
        heartbeat_ms=1_000,
        rebalance_timeout_ms=10_000,
    )
    try:
        async with asyncio.timeout(EXERCISE_TIMEOUT_S):
            await admin.start()
            await admin.create(_PLACE.topic, 1, {"cleanup.policy": "compact"})
            await writer.start()
            await writer.send(*_PLACE, b"value", key=b"key")
            await member.start()
            await member.join([_PLACE.topic])
            while not await member.poll(timeout_ms=100, max_records=1):
                pass
            await member.commit({_PLACE: 1})
            await admin.group_offsets("training")
    finally:
        await member.leave()
        await writer.close()
        await admin.close()


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]
