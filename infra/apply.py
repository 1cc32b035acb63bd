"""Makes the topics and tables that a platform needs, or shows what is missing.

Run as `python -m infra.apply [--plan]` by the supervisor at each start, and by `millstream apply`.
Harmless to repeat. `infra/topic_plan.py` decides about topics; the tables are decided about in
`infra/clickhouse/`.
"""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence

from infra.clickhouse import store
from infra.config import Config, load
from infra.control import ControlTail, ControlView
from infra.errors import InfraError, LogUnavailable, StartupError
from infra.kafka import KafkaAdmin, KafkaReader, KafkaWriter
from infra.ports import Entropy, LogAdmin, LogReader, LogWriter
from infra.system import SystemEntropy
from infra.topic_plan import (
    AlterTopic,
    AnnounceTopic,
    CreateTopic,
    ExistingTopic,
    RefuseTopic,
    Step,
    plan,
    render,
)
from schemas.codec import encode
from schemas.operations import ControlRecord, TopicCreated
from schemas.topics import CONTROL, Topic, topics

__all__ = ["apply", "look", "main", "plan", "render"]

KAFKA_WITHIN_S = 60.0
BROKERS_PAUSE_S = 0.1
INCARNATION_BITS = 32


async def look(wanted: Sequence[Topic], admin: LogAdmin, reader: LogReader) -> list[Step]:
    """Return the steps that are missing now. Raises LogError."""
    counts = await admin.topics()
    existing: Mapping[str, ExistingTopic] = {
        topic.name: ExistingTopic(
            partitions=counts[topic.name], settings=await admin.settings(topic.name)
        )
        for topic in wanted
        if topic.name in counts
    }
    view = ControlView()
    if CONTROL in counts:
        await ControlTail(reader, view).read_all()
    announced = [topic.name for topic in wanted if view.incarnation(topic.name) is not None]
    return plan(wanted, existing, announced)


async def apply(
    steps: Sequence[Step], admin: LogAdmin, writer: LogWriter, entropy: Entropy
) -> None:
    """Carry out the steps, in their order.

    Raises: StartupError naming every topic with another number of partitions, before anything is
    changed; LogError.
    """
    refused = [step for step in steps if isinstance(step, RefuseTopic)]
    if refused:
        raise StartupError(render(refused))
    for step in steps:
        match step:
            case CreateTopic():
                await admin.create(step.topic, step.partitions, step.settings)
            case AlterTopic():
                await admin.alter(step.topic, step.after)
            case AnnounceTopic():
                fact = TopicCreated(
                    topic=step.topic,
                    partitions=step.partitions,
                    incarnation=entropy.bits(INCARNATION_BITS),
                )
                record = encode(ControlRecord(topic_created=fact))
                await writer.send(CONTROL, 0, record, key=step.topic.encode())
            case RefuseTopic():
                raise AssertionError("refusals were raised above")


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Show the difference (`--plan`) or make it; return the exit status."""
    unknown = [argument for argument in arguments if argument != "--plan"]
    if unknown:
        print(f"unknown argument {unknown[0]}; the only one is --plan", file=sys.stderr)
        return 2
    try:
        lines = asyncio.run(_run(load(environ), only_show=bool(arguments)))
    except InfraError as error:
        print(error, file=sys.stderr)
        return 1
    print(lines or "topics and tables are as they should be")
    return 0


async def _run(config: Config, *, only_show: bool) -> str:
    tables = await _tables(config, only_show=only_show)
    admin = KafkaAdmin(config.kafka, client_id="millstream-apply")
    reader = KafkaReader(config.kafka, client_id="millstream-apply")
    writer = KafkaWriter(config.kafka, client_id="millstream-apply")
    try:
        await _within_reach(config, admin, reader, writer)
        steps = await look(topics(config.pool), admin, reader)
        if not only_show:
            await apply(steps, admin, writer, SystemEntropy())
    finally:
        await writer.close()
        await reader.close()
        await admin.close()
    return "\n".join(part for part in (render(steps), *tables) if part)


async def _within_reach(
    config: Config, admin: KafkaAdmin, *others: KafkaReader | KafkaWriter
) -> None:
    try:
        async with asyncio.timeout(KAFKA_WITHIN_S):
            for client in (admin, *others):
                await client.start()
            # A topic gets as many copies as there are brokers when it is made.
            while await admin.brokers() < config.brokers:  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(BROKERS_PAUSE_S)
    except TimeoutError:
        raise LogUnavailable(
            f"no Kafka at {config.kafka} within {KAFKA_WITHIN_S:g} s; check the address and that "
            "it runs, then apply again"
        ) from None


async def _tables(config: Config, *, only_show: bool) -> list[str]:
    usage = store.ClickHouseUsageStore(
        store.Address(
            url=config.clickhouse_url,
            user=config.clickhouse_user,
            password=config.clickhouse_password,
            database=config.clickhouse_database,
        )
    )
    try:
        missing = await usage.missing_tables()
        if missing and not only_show:
            await usage.create_tables()
    finally:
        await usage.close()
    return [f"create table {config.clickhouse_database}.{name}" for name in missing]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
