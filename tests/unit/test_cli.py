"""The command line: exit statuses, what is printed, what the commands do to the log."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra.cli.ask import texts
from infra.cli.group import COMMANDS
from infra.cli.keys import create, revoke
from infra.cli.settings import Running
from infra.cli.status import describe, look
from infra.cli.up import with_model
from infra.config import DEFAULT_MODEL, Config
from infra.control import ControlTail, ControlView
from infra.errors import ConfigError
from infra.memory import MemoryBroker
from infra.supervisor.folder import DataFolder
from infra.supervisor.orphans import record
from infra.supervisor.seed import seed_keys
from infra.supervisor.state import Endpoints, PlatformState, ProcessEntry
from infra.system import SystemClock, SystemEntropy
from schemas.topics import CONTROL


def millstream(
    *arguments: str, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command as users do."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("MILLSTREAM_")}
    return subprocess.run(
        [sys.executable, "-c", "from infra.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        env={**kept, **(environ or {})},
        timeout=60,
        check=False,
    )


def _sleeper() -> subprocess.Popen[bytes]:
    """Start a process that does nothing, as the supervisor starts its children."""
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    while _command_of(process) != ["sleep", "60"]:
        pass  # until it has executed its program
    return process


def _command_of(process: subprocess.Popen[bytes]) -> list[str]:
    return Path(f"/proc/{process.pid}/cmdline").read_text().rstrip("\0").split("\0")


def test_every_command_explains_itself() -> None:
    """The help of the group lists each command."""
    done = millstream("--help")
    assert done.returncode == 0
    for name in COMMANDS:
        assert f"  {name} " in done.stdout


def test_every_flag_names_its_variable() -> None:
    """The help of `up` names the MILLSTREAM_* variable of each flag, and what is so without it."""
    done = millstream("up", "--help")
    for name in ("DATA_DIR", "ENGINE", "WORKERS", "GATEWAYS", "PORT", "KAFKA", "CLICKHOUSE_URL"):
        assert f"MILLSTREAM_{name}" in done.stdout
    words = " ".join(done.stdout.split())
    assert "Use this Kafka instead. [default: embedded]" in words
    assert "Use this ClickHouse instead. [default: embedded]" in words


@pytest.mark.parametrize(
    ("status", "hinted"), [(400, False), (401, False), (500, False), (503, True), (529, True)]
)
def test_ask_tells_to_wait_only_where_that_helps(tmp_path: Path, status: int, hinted: bool) -> None:
    """A refused question is told in one line; where the platform is not ready, what to do too."""
    with _answering(status) as url:
        done = millstream("ask", "hi", "--url", url, "--data", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"{url} answered {status}: why")
    assert ("millstream status" in done.stderr) == hinted


def test_ask_without_anybody_who_listens_says_what_to_do(tmp_path: Path) -> None:
    """A refused connection is told, with how to wait for a start."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        done = millstream("ask", "hi", "--url", url, "--data", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"{url} cannot be reached") and "--wait" in done.stderr


@contextmanager
def _answering(status: int) -> Iterator[str]:
    """Yield the address of a server that answers one request with a status."""

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            received = b""
            while b'"messages"' not in received:
                received += connection.recv(65_536)
            connection.sendall(f"HTTP/1.1 {status} x\r\ncontent-length: 3\r\n\r\nwhy".encode())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)


def test_bad_settings_are_all_named_and_exit_2(tmp_path: Path) -> None:
    """`up` refuses bad flags and variables together and touches nothing."""
    data = tmp_path / "data"
    done = millstream("up", "--data", str(data), "--port", "x", environ={"MILLSTREAM_WORKERZ": "1"})
    assert done.returncode == 2
    assert "MILLSTREAM_PORT: 'x' given" in done.stderr
    assert "did you mean MILLSTREAM_WORKERS?" in done.stderr
    assert not data.exists()


def test_commands_say_what_to_do_where_nothing_runs(tmp_path: Path) -> None:
    """Without a platform, commands that need one name the command that starts one."""
    data = str(tmp_path / "none")
    for command in (["status"], ["ask", "hi"], ["keys", "list"], ["apply", "--plan"]):
        done = millstream(*command, "--data", data)
        assert done.returncode == 2, command
        assert f"millstream up --data {data}" in done.stderr, command
    done = millstream("status", "--json", "--data", data)
    assert (done.returncode, json.loads(done.stdout)["ready"]) == (1, False)
    assert millstream("down", "--data", data).returncode == 0


def test_commands_name_what_a_killed_supervisor_has_left(tmp_path: Path) -> None:
    """What still runs without its supervisor is told, with the command that ends it."""
    run = tmp_path / "run"
    run.mkdir()
    command = Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0")
    record(run, "kafka-0", os.getpid(), command)  # this process stands for it
    done = millstream("status", "--data", str(tmp_path))
    assert done.returncode == 2
    assert f"left kafka-0 running: `millstream up --data {tmp_path}`" in done.stderr
    assert "`millstream down` only ends them" in done.stderr


def test_down_ends_what_a_killed_supervisor_has_left_and_nothing_else(tmp_path: Path) -> None:
    """Recorded processes are ended and named; one that only has a recorded pid runs on."""
    run = tmp_path / "run"
    run.mkdir()
    sleepers = {name: _sleeper() for name in ("kafka-0", "worker-0", "metering")}
    try:
        for name, process in sleepers.items():
            record(run, name, process.pid, _command_of(process))
        foreign = json.loads((run / "metering.json").read_text())
        foreign["start_ticks"] -= 1  # as where the pid went to another process
        (run / "metering.json").write_text(json.dumps(foreign))
        done = millstream("down", "--data", str(tmp_path))
        assert (done.returncode, done.stderr) == (0, "")
        assert "ending what an earlier run left behind: kafka-0 (pid" in done.stdout
        assert "worker-0" in done.stdout and "metering" not in done.stdout
        assert done.stdout.endswith("stopped\n")
        assert sleepers["kafka-0"].wait(1) == -signal.SIGTERM
        assert sleepers["worker-0"].wait(1) == -signal.SIGKILL
        assert sleepers["metering"].poll() is None
        assert not list(run.iterdir())
        assert "no platform runs on" in millstream("down", "--data", str(tmp_path)).stdout
    finally:
        for process in sleepers.values():
            process.kill()
            process.wait()


def test_a_commands_own_variable_is_no_unknown_setting(tmp_path: Path) -> None:
    """Each flag, also one that is no setting, can come from its variable."""
    done = millstream("status", "--data", str(tmp_path), environ={"MILLSTREAM_STATUS_AS_JSON": "1"})
    assert json.loads(done.stdout)["ready"] is False


def test_logs_shows_the_last_lines_of_a_process(tmp_path: Path) -> None:
    """`logs NAME` prints the end of that file, `logs` all with their names."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-0.log").write_text("one\ntwo\nthree\n")
    (tmp_path / "logs" / "metering.log").write_text("four\n")
    assert millstream("logs", "worker-0", "-n", "2", "--data", str(tmp_path)).stdout == (
        "two\nthree\n"
    )
    assert "metering    | four" in millstream("logs", "--data", str(tmp_path)).stdout
    missing = millstream("logs", "worker-9", "--data", str(tmp_path))
    assert (missing.returncode, "metering, worker-0" in missing.stderr) == (1, True)


def test_a_key_is_stored_hashed_and_can_be_revoked() -> None:
    """The control topic never holds a secret, and knows a key as revoked after `revoke`."""

    async def run() -> None:
        clock, entropy = SystemClock(), SystemEntropy()
        broker = MemoryBroker(clock)
        await broker.admin().create(CONTROL, 1, {})
        writer = broker.writer("keys")
        names = {"org": "acme", "workspace": "default", "tier": "default"}
        secret, created = await create(writer, entropy, clock, admin=False, **names)
        view = await ControlTail(broker.reader(), ControlView()).read_all()
        assert view.keys[created.secret_sha256].org == "acme"
        assert secret not in repr(view.created)
        assert await revoke(broker.reader(), writer, clock, created.key_id)
        assert not await revoke(broker.reader(), writer, clock, "key_none")
        view = await ControlTail(broker.reader(), ControlView()).read_all()
        assert not view.keys
        assert view.revoked_ms(created.key_id) is not None
        assert await seed_keys([created], broker.reader(), writer) == 0

    asyncio.run(run())


def test_development_keys_are_seeded_once() -> None:
    """Seeding writes those keys that the log lacks, however often it runs."""

    async def run() -> None:
        clock, broker = SystemClock(), MemoryBroker(SystemClock())
        await broker.admin().create(CONTROL, 1, {})
        names = {"org": "dev", "workspace": "default", "tier": "default"}
        other = MemoryBroker(clock)
        await other.admin().create(CONTROL, 1, {})
        _, key = await create(other.writer("k"), SystemEntropy(), clock, admin=True, **names)
        writer = broker.writer("seed")
        assert await seed_keys([key], broker.reader(), writer) == 1
        assert await seed_keys([key], broker.reader(), writer) == 0

    asyncio.run(run())


def test_an_answer_is_complete_only_with_its_last_event() -> None:
    """The text of a stream is joined; an error or a missing end is raised."""

    def data(event: object) -> str:
        return f"data: {json.dumps(event)}"

    piece = data({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Pa"}})
    stop = data({"type": "message_stop"})
    assert "".join(texts(iter(["event: x", piece, ": ping", piece, stop]))) == "PaPa"
    with pytest.raises(ValueError, match="before its last event"):
        list(texts(iter([piece])))
    with pytest.raises(ValueError, match="overloaded"):
        list(texts(iter([data({"type": "error", "error": {"message": "overloaded"}})])))


def test_a_model_is_a_name_we_prepare_or_a_folder(tmp_path: Path) -> None:
    """A folder gives name and pool; anything else is refused with what would do."""
    with pytest.raises(ConfigError, match=DEFAULT_MODEL):
        with_model(Config(model="gpt-9"))
    folder = tmp_path / "My_Model-1B"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    config = with_model(Config(model=str(folder)))
    assert (config.model, config.pool, config.model_path) == ("my-model-1b",) * 2 + (folder,)
    assert with_model(Config(cache_dir=tmp_path)).model_path == tmp_path / "models" / DEFAULT_MODEL


def test_status_asks_each_process_and_shows_the_agreed_form(tmp_path: Path) -> None:
    """A process that does not answer makes the platform unready; the JSON has the agreed keys."""
    gone = ProcessEntry(
        name="gateway-0",
        pid=4,
        state="running",
        ready=True,
        restarts=2,
        health="http://127.0.0.1:1",
        probe=("127.0.0.1", 1, "/ready"),
    )
    endpoints = Endpoints(public="u", gateways=("g",), kafka="k:1", clickhouse="c")
    state = PlatformState(pid=1, ready=True, model="m", endpoints=endpoints, processes=(gone,))
    seen = asyncio.run(look(state))
    assert not seen.ready
    shown = describe(Running(config=Config(), folder=DataFolder(tmp_path), state=state), seen)
    assert json.loads(json.dumps(shown)) == {
        "ready": False,
        "endpoints": {"public": "u", "gateways": ["g"], "kafka": "k:1", "clickhouse": "c"},
        "dev_key": None,
        "model": "m",
        "processes": [
            {
                "name": "gateway-0",
                "pid": 4,
                "state": "running",
                "ready": False,
                "restarts": 2,
                "health": "http://127.0.0.1:1/health",
                "metrics": "http://127.0.0.1:1/metrics",
            }
        ],
    }
