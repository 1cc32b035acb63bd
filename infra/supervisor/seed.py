"""Make topics and tables, then write a data folder's development keys to `control.v1`.

Runs once during each start: `python -m infra.supervisor.seed`. Harmless to repeat: what is there
stays. One process for both, because loading the libraries takes longer than the work.
"""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from infra import apply
from infra.config import Config, load
from infra.control import ControlTail, ControlView
from infra.kafka import KafkaReader, KafkaWriter
from infra.logs import configure
from infra.ports import LogReader, LogWriter
from schemas.codec import encode
from schemas.operations import ControlRecord, KeyCreated
from schemas.topics import CONTROL

__all__ = ["KEY_FILES", "main", "seed_keys"]

KEY_FILES = ("dev_key.json", "admin_key.json")


async def seed_keys(keys: Sequence[KeyCreated], reader: LogReader, writer: LogWriter) -> int:
    """Append those keys that the control topic lacks; return how many. Raises LogError."""
    view = await ControlTail(reader, ControlView()).read_all()
    lacking = [key for key in keys if key.key_id not in view.created]
    for key in lacking:
        record = ControlRecord(key_created=key)
        await writer.send(CONTROL, 0, encode(record), key=key.key_id.encode())
    return len(lacking)


def kept_keys(secrets: Path) -> tuple[KeyCreated, ...]:
    """Return the development keys of a data folder."""
    return tuple(KeyCreated(**json.loads((secrets / name).read_text())) for name in KEY_FILES)


async def _run(config: Config) -> None:
    reader = KafkaReader(config.kafka, client_id=config.process)
    writer = KafkaWriter(config.kafka, client_id=config.process)
    await reader.start()
    await writer.start()
    try:
        await seed_keys(kept_keys(config.data_dir / "secrets"), reader, writer)
    finally:
        await writer.close()
        await reader.close()


def main() -> int:
    """Run as a process of its own; return the exit status."""
    config = load(os.environ)
    configure(config)
    status = apply.main([], os.environ)
    if status == 0:
        asyncio.run(_run(config))
    return status


if __name__ == "__main__":
    sys.exit(main())
