"""How a statement is cut: its tokens, an INSERT's head and data, the format a result is asked in.

Owns just enough of ClickHouse's grammar to know where an INSERT's data begins and which words
stand in code rather than in strings or comments; the engine parses for real. Pure.

Source: ClickHouse `src/Parsers/Lexer.cpp`, `ParserInsertQuery.cpp`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["word", "quoted", "string", "number", "sign", "broken"]

_TOKEN = re.compile(
    rb"""
    (?P<blank> [\s\x00\v\f]+ | \xc2\xa0 | --[^\n]* | \#[ !][^\n]* | /\*.*?\*/ )
  | (?P<string> '(?:[^'\\]|\\.|'')*'
              | \xe2\x80\x98.*?\xe2\x80\x99
              | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ )
  | (?P<quoted> `(?:[^`\\]|\\.|``)*` | "(?:[^"\\]|\\.|"")*" | \xe2\x80\x9c.*?\xe2\x80\x9d )
  | (?P<number> \d[\w.]* )
  | (?P<word> [A-Za-z_][\w$]* )
  | (?P<broken> ['"`] | /\* | \xe2\x80[\x98\x9c] )
  | (?P<sign> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_GAP_BEFORE_DATA = re.compile(rb"[ \t\f]*\r?\n?")


class SqlError(ValueError):
    """A statement that the front cannot cut; shown to clients as ClickHouse's error `code`."""

    def __init__(self, message: str, code: int = 62, name: str = "SYNTAX_ERROR") -> None:
        super().__init__(message)
        self.code, self.name = code, name


class Token(NamedTuple):
    """One token in code; blanks and comments are none."""

    kind: Kind
    text: bytes
    start: int
    end: int

    def says(self, *words: str) -> bool:
        """Tell whether this is one of these upper-case bare words or signs."""
        return self.kind in ("word", "sign") and self.text.decode("latin-1").upper() in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement, cut. `data` and `data_format` are those of an INSERT that carries rows."""

    text: str
    tokens: tuple[Token, ...]
    data: bytes | None = None
    data_format: str | None = None
    result_format: str | None = None

    @property
    def verb(self) -> str:
        """The first word in upper case; empty where there is none."""
        return self.tokens[0].text.decode("latin-1").upper() if self.tokens else ""


def tokens(sql: bytes) -> Iterator[Token]:
    """Yield the tokens of `sql`, lazily, so that an INSERT's data is never looked at."""
    position = 0
    while match := _TOKEN.match(sql, position):
        kind = match.lastgroup
        if kind == "tag":
            kind = "string"
        position = match.end()
        if kind != "blank":
            yield Token(kind, match[0], match.start(), position)  # type: ignore[arg-type]  # a Kind


def read(sql: bytes, default_format: str, sql_bytes_max: int) -> Statement:
    """Cut one statement.

    Args:
        default_format: format of an INSERT's data where the statement names none.
        sql_bytes_max: bound of everything but an INSERT's data.

    Raises: SqlError where it is empty, too long, unterminated or several statements.
    """
    stream = _bounded(tokens(sql), sql_bytes_max)
    first = next(stream, None)
    if first is None:
        raise SqlError("Empty query")
    if first.says("INSERT"):
        return _insert(sql, first, stream, default_format)
    return _whole(sql, (first, *stream))


def _bounded(stream: Iterator[Token], sql_bytes_max: int) -> Iterator[Token]:
    for token in stream:
        if token.end > sql_bytes_max:
            raise SqlError(f"Max query size exceeded: {sql_bytes_max} bytes")
        if token.kind == "broken":
            raise SqlError(f"Unterminated {token.text.decode('utf-8', 'replace')} in the query")
        yield token


def _insert(sql: bytes, first: Token, stream: Iterator[Token], default_format: str) -> Statement:
    """Walk an INSERT up to where its data or its SELECT begins."""
    seen, depth, name_seen = [first], 0, False
    for token in stream:
        seen.append(token)
        if not name_seen:
            # Until the table's name any word may be a name, `format` and `values` included.
            name_seen = token.kind in ("word", "quoted") and not token.says("INTO", "TABLE")
        elif token.says("("):
            depth += 1
        elif token.says(")"):
            depth -= 1
        elif depth or seen[-2].says("."):
            continue
        elif token.says("VALUES"):
            return _with_data(sql, seen[:-1], token.start, "Values", token.end)
        elif token.says("FORMAT"):
            name = next(stream, None)
            if name is None or name.kind != "word":
                raise SqlError("Expected the name of a format after FORMAT")
            data_format = name.text.decode("latin-1")
            gap = _GAP_BEFORE_DATA.match(sql, name.end)
            assert gap is not None, "an empty gap matches too"
            start = gap.end()
            if sql[start : start + 1] == b";":
                raise SqlError("You have excessive ';' symbol before data for INSERT")
            return _with_data(sql, seen[:-1], token.start, data_format, start)
        elif token.says("SELECT", "WITH", "FROM", "WATCH"):
            return _whole(sql, (*seen, *stream))
    if depth == 0 and not any(token.says(";") for token in seen):
        # `INSERT INTO t (a)` alone, as some clients send it with an empty or a default format.
        return _with_data(sql, seen, len(sql), default_format, len(sql))
    return _whole(sql, tuple(seen))


def _with_data(
    sql: bytes, head: list[Token], head_end: int, data_format: str, data_start: int
) -> Statement:
    return Statement(
        text=_decode(sql[:head_end]),
        tokens=tuple(head),
        data=sql[data_start:],
        data_format=data_format,
    )


def _whole(sql: bytes, found: tuple[Token, ...]) -> Statement:
    """Take all of `sql` as one statement without its final semicolon."""
    end = len(sql)
    for index, token in enumerate(found):
        if token.says(";"):
            if any(not later.says(";") for later in found[index:]):
                raise SqlError("Multi-statements are not allowed")
            found, end = found[:index], token.start
            break
    if not found:
        raise SqlError("Empty query")
    return Statement(text=_decode(sql[:end]), tokens=found, result_format=_result_format(found))


def _result_format(found: tuple[Token, ...]) -> str | None:
    """Return the format of a trailing `FORMAT name [SETTINGS ...]`, or None."""
    depth = 0
    for index in range(len(found) - 2, 0, -1):
        token = found[index + 1]
        depth += token.says(")") - token.says("(")
        if depth == 0 and found[index].says("FORMAT") and token.kind == "word":
            following = found[index + 2 : index + 3]
            if not following or following[0].says("SETTINGS"):
                return token.text.decode("latin-1")
    return None


def _decode(sql: bytes) -> str:
    try:
        return sql.decode()
    except UnicodeDecodeError as error:
        raise SqlError(f"The query is not UTF-8: {error}") from None
