"""What a client of the embedded ClickHouse may not say.

The engine runs inside a process of ours, so that some of its functions would reach our files. Its
own grants (see `engine_config`) deny table functions, engines and commands that leave the
database; this module refuses the rest, which grants do not cover in chDB: the scalar function
`file`, INFILE and OUTFILE, Python objects. Pure.
"""

import re
from collections.abc import Iterable

from infra.clickhouse.front.sql import SqlError, Statement, Token, tokens

_NAMES = frozenset({"file", "python"})
_CALLS = frozenset({"executable"})
_WORDS = frozenset({"INFILE", "OUTFILE"})
_DATABASE_ENGINES = frozenset({"atomic", "memory"})
# Data is only looked at where it could hold a refused name; a backslash may spell one in a quoted
# name.
_SUSPICIOUS = re.compile(rb"file|python|executable|[`\"]|\xe2\x80\x9c", re.IGNORECASE)


def check(statement: Statement) -> None:
    """Raise SqlError (ACCESS_DENIED) where the statement, or an expression in its VALUES, is
    refused."""
    _check_tokens(statement.tokens)
    _check_database_engine(statement.tokens)
    data = statement.data
    if data and statement.data_format == "Values" and _SUSPICIOUS.search(data):
        _check_tokens(tokens(data))


def _check_tokens(found: Iterable[Token]) -> None:
    before: str | None = None
    for token in found:
        if before is not None and token.says("("):
            raise _denied(f"function {before}")
        before = None
        if token.kind == "quoted":
            name = token.text.strip(b'`"').decode("utf-8", "replace").strip("\u201c\u201d")
            if "\\" in name:
                raise _denied("a backslash in a quoted name")
        elif token.kind == "word":
            name = token.text.decode("latin-1")
            if name.upper() in _WORDS:
                raise _denied(name.upper())
        else:
            continue
        if name.lower() in _NAMES:
            raise _denied(f"the name {name!r}")
        if name.lower() in _CALLS:
            before = name


def _check_database_engine(found: tuple[Token, ...]) -> None:
    if len(found) < 2 or not found[0].says("CREATE", "ATTACH") or not found[1].says("DATABASE"):
        return
    for index, token in enumerate(found[2:], start=2):
        if token.says("ENGINE"):
            rest = [later for later in found[index + 1 :] if not later.says("=")]
            engine = rest[0].text.strip(b'`"').decode("latin-1") if rest else ""
            if engine.lower() not in _DATABASE_ENGINES:
                raise _denied(f"database engine {engine!r}")


def _denied(what: str) -> SqlError:
    return SqlError(
        f"{what} is not allowed here: the embedded ClickHouse reaches nothing outside its tables",
        497,
        "ACCESS_DENIED",
    )
