"""How the embedded ClickHouse cuts statements, and what it refuses: pure."""

import pytest

from infra.clickhouse.front import guard, sql

LIMIT = 1 << 20


def _read(text: str) -> sql.Statement:
    return sql.read(text.encode(), "TabSeparated", LIMIT)


@pytest.mark.parametrize(
    ("text", "head", "data_format", "data"),
    [
        ("INSERT INTO t FORMAT CSV\n1,2\n", "INSERT INTO t ", "CSV", b"1,2\n"),
        ("insert into t (a) format CSV 1", "insert into t (a) ", "CSV", b"1"),
        ("INSERT INTO t VALUES (1, 'FORMAT')", "INSERT INTO t ", "Values", b" (1, 'FORMAT')"),
        ('INSERT INTO `a b`."values" VALUES (1)', 'INSERT INTO `a b`."values" ', "Values", b" (1)"),
        ("INSERT INTO format FORMAT TSV\nx", "INSERT INTO format ", "TSV", b"x"),
        (
            "INSERT INTO TABLE t(`format`) FORMAT TSV\nx",
            "INSERT INTO TABLE t(`format`) ",
            "TSV",
            b"x",
        ),
        ("/* FORMAT */ INSERT INTO t -- FORMAT x\n FORMAT CSV\n1", None, "CSV", b"1"),
        ("INSERT INTO t SETTINGS a = 1 FORMAT Native\n\n\0", None, "Native", b"\n\0"),
        ("INSERT INTO t (a)", "INSERT INTO t (a)", "TabSeparated", b""),
    ],
)
def test_inserts_are_cut_into_head_and_data(
    text: str, head: str | None, data_format: str, data: bytes
) -> None:
    """An INSERT's data begins after its format or VALUES, whatever names and comments say."""
    statement = _read(text)
    assert (statement.data_format, statement.data) == (data_format, data)
    if head is not None:
        assert statement.text == head


@pytest.mark.parametrize(
    ("text", "result_format"),
    [
        ("SELECT 1 FORMAT JSON", "JSON"),
        ("SELECT 1 FORMAT JSON SETTINGS max_threads = 1;", "JSON"),
        ("SELECT 'FORMAT JSON'", None),
        ("SELECT format('{}', 1)", None),
        ("SELECT 1 AS format", None),
        ("SELECT 1 -- FORMAT JSON", None),
        ("INSERT INTO t SELECT * FROM u", None),
        ("SELECT $$ FORMAT JSON; $$", None),
    ],
)
def test_a_result_format_is_read_from_code_only(text: str, result_format: str | None) -> None:
    """FORMAT in strings, comments, functions and aliases names no format."""
    statement = _read(text)
    assert statement.result_format == result_format
    assert statement.data is None


@pytest.mark.parametrize(
    "text", ["", " -- x", ";", "SELECT 1; SELECT 2", "SELECT 'a", "SELECT /* a", "SELECT `a"]
)
def test_what_is_no_single_statement_is_refused(text: str) -> None:
    """Nothing, several statements and unterminated quotes are syntax errors."""
    with pytest.raises(sql.SqlError):
        _read(text)


def test_a_statement_is_bounded_but_not_its_data() -> None:
    """The bound counts the statement alone."""
    with pytest.raises(sql.SqlError, match="Max query size"):
        sql.read(b"SELECT " + b"1+" * 100 + b"1", "CSV", 100)
    assert sql.read(b"INSERT INTO t FORMAT CSV\n" + b"1\n" * 1000, "CSV", 100).data is not None


@pytest.mark.parametrize(
    "text",
    [
        "SELECT file('/etc/passwd')",
        "SELECT FILE /* x */ ('/etc/passwd')",
        "SELECT `file`('/etc/passwd')",
        "SELECT \u201cfile\u201d('/etc/passwd')",
        r"SELECT `\x66ile`('/etc/passwd')",
        "SELECT * APPLY(file) FROM (SELECT '/etc/passwd')",
        "SELECT arrayMap(file, ['/etc/passwd'])",
        "INSERT INTO t VALUES (file('/etc/passwd'))",
        "INSERT INTO t FROM INFILE '/etc/passwd' FORMAT CSV",
        "SELECT 1 INTO OUTFILE '/tmp/x'",
        "SELECT * FROM Python(x)",
        "SELECT * FROM executable('x', 'TSV', 'a String')",
        "CREATE DATABASE d ENGINE = Filesystem('/etc')",
        "CREATE DATABASE d ENGINE MySQL('h', 'd', 'u', 'p')",
    ],
)
def test_what_reaches_out_of_the_tables_is_refused(text: str) -> None:
    """Files, processes and other servers are refused by name, however the name is written."""
    with pytest.raises(sql.SqlError) as caught:
        guard.check(_read(text))
    assert caught.value.code == 497


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 'file(', \"a\" FROM t -- file(",
        "INSERT INTO t VALUES ('file(''/etc/passwd'')', `a`)",
        "INSERT INTO t FORMAT CSV\nfile('/etc/passwd')",
        "SELECT filesystemAvailable()",
        "CREATE DATABASE d",
        "CREATE DATABASE d ENGINE = Atomic",
        "SELECT engine FROM system.tables WHERE engine = 'File'",
    ],
)
def test_ordinary_statements_pass(text: str) -> None:
    """Refused names in strings, comments and plain data are no reason to refuse."""
    guard.check(_read(text))
