"""chDB: opens one data folder, runs statements, each on a connection of its own.

Owns the engine of this process, its folder (lock, version marker) and its limits. A connection is
a session: settings, current database and parameters die with it, so that none leaks from one
request into the next; making one takes about a millisecond. Called by `app` from its worker
threads.
"""

import fcntl
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import chdb

from infra.clickhouse.front import engine_config
from infra.clickhouse.front.sql import SqlError, Statement
from infra.errors import StartupError

LAYOUT = 1
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


class EngineError(Exception):
    """The engine refused or failed a statement; the message is ClickHouse's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One statement and the session it runs in."""

    statement: Statement
    database: str
    settings: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    default_format: str = "TabSeparated"
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a statement returned and what it touched."""

    body: bytes = b""
    read_rows: int = 0
    read_bytes: int = 0
    written_rows: int = 0
    written_bytes: int = 0
    result_rows: int = 0
    elapsed_s: float = 0.0


class Engine:
    """The engine on one folder. Threads may run queries side by side."""

    def __init__(self, connection_string: str, lock: IO[str], holder: Any, version: str) -> None:
        self._connection_string = connection_string
        self._lock = lock
        self._holder = holder
        self.version = version

    @classmethod
    def open(cls, folder: Path, database: str) -> "Engine":
        """Open or make the folder and the database in it.

        Raises: StartupError where another process holds the folder, or another version wrote it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder / "lock")
        _check_marker(folder / "version.json")
        config = engine_config.write(folder)
        connection_string = f"{folder / 'data'}?config-file={config}"
        try:
            holder = chdb.connect(connection_string)
        except Exception as error:  # chdb raises RuntimeError or its own, by what failed
            raise StartupError(f"ClickHouse cannot open {folder}: {error}") from error
        # Held to the end: closing the last connection shuts the engine down.
        holder.query(f"CREATE DATABASE IF NOT EXISTS {_identifier(database)} ENGINE = Atomic")
        version = holder.query("SELECT version()", "TabSeparated").bytes().decode().strip()
        return cls(connection_string, lock, holder, version)

    def run(self, query: Query) -> Result:
        """Run one statement. Raises EngineError, SqlError."""
        connection = chdb.connect(self._connection_string)
        try:
            for line in _session(query):
                connection.query(line)
            if query.statement.data is not None:
                return _insert(connection, query.statement)
            return _select(connection, query)
        except (chdb.ChdbError, RuntimeError) as error:
            raise EngineError(str(error)) from error
        finally:
            connection.close()

    def close(self) -> None:
        """Shut the engine down and release the folder."""
        self._holder.close()
        self._lock.close()


def _session(query: Query) -> list[str]:
    """Return the statements that make a fresh connection this query's session."""
    lines = [f"USE {_identifier(query.database)}"]
    for name, value in query.settings.items():
        if not _NAME.fullmatch(name):
            raise SqlError(f"Unknown setting {name!r}", 115, "UNKNOWN_SETTING")
        lines.append(f"SET {name} = {_literal(value)}")
    for name, value in query.parameters.items():
        if not _NAME.fullmatch(name):
            raise SqlError(f"Bad parameter name {name!r}")
        lines.append(f"SET param_{name} = {_literal(value)}")
    if query.read_only:
        lines.append("SET readonly = 2")
    return lines


def _insert(connection: Any, statement: Statement) -> Result:
    """Push an INSERT's rows into the engine; no file, no SQL made of them."""
    assert statement.data is not None and statement.data_format is not None
    inserter = connection.send_insert(statement.text, statement.data_format)
    try:
        if statement.data:
            inserter.append(statement.data)
        done = inserter.finish()
    finally:
        inserter.close()
    return Result(
        written_rows=done.rows_written, written_bytes=done.bytes_written, elapsed_s=done.elapsed
    )


def _select(connection: Any, query: Query) -> Result:
    found = connection.query(query.statement.text, query.default_format)
    if found is None:
        return Result()
    return Result(
        body=found.bytes() or b"",
        read_rows=found.storage_rows_read(),
        read_bytes=found.storage_bytes_read(),
        written_rows=found.rows_written(),
        written_bytes=found.bytes_written(),
        result_rows=found.rows_read(),
        elapsed_s=found.elapsed(),
    )


def _identifier(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def _literal(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _lock(path: Path) -> IO[str]:
    """Hold the folder for this process; the kernel frees it when the process dies, however it
    dies."""
    lock = path.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise StartupError(
            f"{path.parent} is in use by another ClickHouse process: stop it first"
        ) from None
    return lock


def _check_marker(path: Path) -> None:
    """Refuse a folder that another version wrote; mark a new one."""
    mine = {"layout": LAYOUT, "engine": chdb.engine_version}
    if not path.exists():
        path.write_text(json.dumps(mine))
        return
    try:
        theirs = json.loads(path.read_text())
        newer = _numbers(theirs["engine"]) > _numbers(mine["engine"])
        layout = theirs["layout"]
    except (ValueError, KeyError, TypeError) as error:
        raise StartupError(
            f"{path} is damaged ({error!r}): restore it or use another folder"
        ) from error
    if layout != LAYOUT or newer:
        raise StartupError(
            f"{path.parent} was written by layout {layout}, engine {theirs['engine']}; this is "
            f"layout {LAYOUT}, engine {mine['engine']}: use the newer version or another folder"
        )
    path.write_text(json.dumps(mine))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
