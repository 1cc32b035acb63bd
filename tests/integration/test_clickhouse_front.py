"""The embedded ClickHouse as its clients see it: clickhouse-connect, and plain HTTP as curl and BI
tools speak it."""

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import clickhouse_connect
import httpx
import pytest

from tests.clickhouse_front import PASSWORD, USER, FrontProcess, free_port


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of this module's server."""
    return tmp_path_factory.mktemp("clickhouse")


@pytest.fixture(scope="module")
def front(folder: Path) -> Iterator[FrontProcess]:
    """One embedded ClickHouse for this module."""
    with FrontProcess(folder) as process:
        yield process


@pytest.fixture
def http(front: FrontProcess) -> Iterator[httpx.Client]:
    """An HTTP client with the right credentials."""
    with httpx.Client(base_url=front.url, auth=(USER, PASSWORD), timeout=30) as client:
        yield client


def test_the_ordinary_client_works_unchanged(front: FrontProcess) -> None:
    """clickhouse-connect inserts, queries with parameters and settings, compressed and not."""
    for compress in (True, False, "gzip", "zstd", "lz4"):
        with clickhouse_connect.get_client(
            host="127.0.0.1",
            port=front.port,
            username=USER,
            password=PASSWORD,
            compress=compress,
        ) as client:
            client.command("DROP TABLE IF EXISTS words")
            client.command("CREATE TABLE words (n UInt32, w String) ENGINE = MergeTree ORDER BY n")
            client.insert("words", [[n, f"FORMAT {n} '"] for n in range(5_000)], ["n", "w"])
            found = client.query(
                "SELECT n, w FROM words WHERE n >= {low:UInt32} ORDER BY n",
                parameters={"low": 4_998},
                settings={"max_threads": 1},
            )
            assert found.result_rows == [(4_998, "FORMAT 4998 '"), (4_999, "FORMAT 4999 '")]
            assert client.command("SELECT count() FROM words") == 5_000
            quoted = client.query("SELECT %(text)s", parameters={"text": "it's \\ \t 'FORMAT"})
            assert quoted.first_row == ("it's \\ \t 'FORMAT",)


def test_queries_stand_in_the_url_the_body_or_both(http: httpx.Client) -> None:
    """GET, POST and both halves together give the same answer."""
    assert http.get("/", params={"query": "SELECT 1"}).text == "1\n"
    assert http.post("/", content="SELECT 1").text == "1\n"
    assert http.post("/", params={"query": "SELECT"}, content="1 FORMAT CSV").text == "1\n"
    http.post("/", content="CREATE TABLE halves (a Int32) ENGINE = Memory")
    inserted = http.post("/", params={"query": "INSERT INTO halves FORMAT CSV"}, content=b"1\n2\n")
    assert json.loads(inserted.headers["x-clickhouse-summary"])["written_rows"] == "2"
    http.post("/", params={"query": "INSERT INTO halves VALUES"}, content="(3), (4)")
    packed = gzip.compress(b"INSERT INTO halves FORMAT JSONEachRow\n" + b'{"a": 5}')
    assert http.post("/", content=packed, headers={"content-encoding": "gzip"}).status_code == 200
    assert http.post("/", content="SELECT sum(a) FROM halves").text == "15\n"


def test_formats_headers_and_compression(http: httpx.Client) -> None:
    """The format is found in the query, the parameter or the header; answers are labelled."""
    answer = http.get("/", params={"query": "SELECT 1 AS a FORMAT JSON", "query_id": "mine"})
    assert answer.json()["data"] == [{"a": 1}]
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["x-clickhouse-query-id"] == "mine"
    assert answer.headers["x-clickhouse-timezone"] == "UTC"
    assert http.get("/", params={"query": "SELECT 1,2", "default_format": "CSV"}).text == "1,2\n"
    labelled = http.post("/", content="SELECT 1,2", headers={"x-clickhouse-format": "CSV"})
    assert (labelled.text, labelled.headers["x-clickhouse-format"]) == ("1,2\n", "CSV")
    query = {"query": "SELECT * FROM numbers(1000)", "enable_http_compression": "1"}
    packed = http.get("/", params=query, headers={"accept-encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.text.splitlines()[-1] == "999"
    plain = http.get("/", params={"query": query["query"]}, headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("SELECT * FROM nowhere", 404, 60),
        ("SELECT FROM WHERE", 400, 62),
        ("SELECT nothing", 404, 47),
        ("SELECT 1; SELECT 2", 400, 62),
        ("SELECT toInt32('x')", 400, 6),
        ("SELECT file('/etc/passwd')", 403, 497),
        ("SELECT * FROM url('http://127.0.0.1:1/', 'CSV', 'a String')", 403, 497),
        ("SELECT * FROM remote('127.0.0.1', system.one)", 403, 497),
        ("SYSTEM SHUTDOWN", 403, 497),
        ("CREATE TABLE f (a String) ENGINE = URL('http://127.0.0.1:1/', 'CSV')", 403, 497),
        ("SELECT 1 FORMAT Template SETTINGS format_template_resultset='/etc/passwd'", 400, 452),
        ("SELECT number FROM numbers(1000000000)", 400, 396),
    ],
)
def test_errors_have_their_status_and_code(
    http: httpx.Client, query: str, status: int, code: int
) -> None:
    """Each error comes with ClickHouse's code and the HTTP status that its server gives."""
    answer = http.post("/", content=query)
    assert (answer.status_code, answer.headers["x-clickhouse-exception-code"]) == (
        status,
        str(code),
    )
    assert answer.text.startswith(f"Code: {code}.")


def test_credentials_are_wanted_in_any_of_their_forms(front: FrontProcess) -> None:
    """Basic, headers and parameters let in; none is 401, a wrong one 403; ping needs none."""
    headers = {"x-clickhouse-user": USER, "x-clickhouse-key": PASSWORD}
    parameters = {"user": USER, "password": PASSWORD, "query": "SELECT 1"}
    with httpx.Client(base_url=front.url) as anyone:
        assert anyone.get("/ping").text == "Ok.\n"
        assert anyone.get("/replicas_status").status_code == 200
        assert anyone.post("/", content="SELECT 1").status_code == 401
        assert anyone.post("/", content="SELECT 1", auth=(USER, "no")).status_code == 403
        assert anyone.post("/", content="SELECT 1", auth=("default", PASSWORD)).status_code == 403
        assert anyone.post("/", content="SELECT 1", headers=headers).text == "1\n"
        assert anyone.get("/", params=parameters).text == "1\n"
        assert anyone.get("/", headers={"authorization": "Basic ???"}).status_code == 401


def test_nothing_leaks_from_one_request_into_the_next(http: httpx.Client) -> None:
    """Settings, database, parameters and read-only mode last one request."""
    ask = {"query": "SELECT getSetting('max_threads'), currentDatabase()"}
    before = http.get("/", params=ask).text
    changed = http.get("/", params={**ask, "max_threads": "1", "database": "system"}).text
    assert changed == "1\tsystem\n"
    http.post("/", content="SET max_threads = 1")
    http.post("/", content="USE system")
    assert http.get("/", params=ask).text == before
    assert (
        http.get("/", params={"query": "CREATE TABLE x (a Int8) ENGINE = Memory"}).status_code
        == 500
    )
    assert http.post("/", content="CREATE TABLE x (a Int8) ENGINE = Memory").status_code == 200
    unknown = http.get("/", params={**ask, "no_such_setting": "1"})
    assert (unknown.status_code, unknown.headers["x-clickhouse-exception-code"]) == (404, "115")


def test_many_clients_at_once_are_served(front: FrontProcess) -> None:
    """Inserts and queries side by side all succeed and count right."""
    with httpx.Client(base_url=front.url, auth=(USER, PASSWORD), timeout=60) as client:
        client.post("/", content="CREATE TABLE many (a Int32) ENGINE = MergeTree ORDER BY a")

        def work(number: int) -> int:
            client.post("/", content=f"INSERT INTO many VALUES ({number})").raise_for_status()
            return client.post("/", content="SELECT count() FROM many").status_code

        with ThreadPoolExecutor(16) as threads:
            assert set(threads.map(work, range(100))) == {200}
        assert client.post("/", content="SELECT count(), sum(a) FROM many").text == "100\t4950\n"


def test_a_killed_server_comes_back_with_its_rows(tmp_path: Path) -> None:
    """After kill -9 a new process opens the folder at once and holds what was acknowledged."""
    with FrontProcess(tmp_path) as process:
        with httpx.Client(base_url=process.url, auth=(USER, PASSWORD), timeout=30) as client:
            client.post("/", content="CREATE TABLE kept (a Int32) ENGINE = MergeTree ORDER BY a")
            for number in range(20):
                query = f"INSERT INTO kept VALUES ({number})"
                client.post("/", content=query).raise_for_status()
        process.kill()
        process.start()
        with httpx.Client(base_url=process.url, auth=(USER, PASSWORD), timeout=30) as client:
            assert client.post("/", content="SELECT count() FROM kept").text == "20\n"
        os.kill(process.pid, signal.SIGINT)  # twice, as Ctrl-C at a terminal may come
        assert process.stop() == 0


def test_a_folder_is_used_by_one_and_of_one_version(front: FrontProcess, folder: Path) -> None:
    """A second process on the folder, and a folder of another layout, are refused by name."""

    def start(data_dir: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "infra.clickhouse"],
            env={
                "PATH": os.environ["PATH"],
                "MILLSTREAM_DATA_DIR": str(data_dir),
                "MILLSTREAM_CLICKHOUSE_URL": f"http://127.0.0.1:{free_port()}",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    second = start(folder)
    assert second.returncode == 1
    assert "in use" in second.stderr
    other = folder / "other"
    (other / "clickhouse").mkdir(parents=True)
    (other / "clickhouse" / "version.json").write_text('{"layout": 99, "engine": "26.9.2.1"}')
    refused = start(other)
    assert refused.returncode == 1
    assert "layout 99" in refused.stderr
