"""A real `millstream up` as a child of the tests, and what a user or an operator does with it.

Owns one platform on a data folder of its own: starting it, asking it what runs, killing parts of
it, stopping it, and ending whatever a test left behind, by pid.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import clickhouse_connect
import httpx
import psutil

from infra.supervisor import orphans

MILLSTREAM = str(Path(sys.executable).with_name("millstream"))
MODEL = "smollm2-135m-instruct"
SOAK = os.environ.get("MILLSTREAM_SOAK") == "1"
DEADLINE_S = 20.0
"""Deadline of every request to these platforms."""
STOP_WITHIN_S = 60.0
_PAUSE_S = 0.05
_ANY_PORTS = ("--port", "0", "--kafka-port", "0", "--clickhouse-port", "0")


def eventually(holds: Callable[[], bool], within_s: float, what: str) -> float:
    """Wait until something holds; return after how many seconds it did. Fails at the bound."""
    began_s = time.monotonic()
    while not holds():
        assert time.monotonic() - began_s < within_s, f"not within {within_s:g} s: {what}"
        time.sleep(_PAUSE_S)
    return time.monotonic() - began_s


def run_command(*arguments: str, within_s: float = 90.0) -> subprocess.CompletedProcess[str]:
    """Run a `millstream` command to its end."""
    return subprocess.run(
        [MILLSTREAM, *arguments],
        env=_environment({}),
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a request got while the platform started; status 0 = no answer."""

    status: int
    retry_after: str | None = None
    why: str = ""


@dataclass(slots=True)
class Platform:
    """One platform; `up` and `stop` may alternate as often as one likes."""

    data: Path
    engine: str
    settings: dict[str, str]
    shown: dict[str, Any] = field(default_factory=dict)
    """What `status --json` said when it was ready last."""
    while_starting: list[Answer] = field(default_factory=list)
    """Answers to requests sent from the moment the public address was known until it was ready."""
    ready_after_s: float = 0.0
    child: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Public base URL."""
        return str(self.shown["endpoints"]["public"])

    @property
    def key(self) -> str:
        """API key of the org `dev`."""
        return str(self.shown["dev_key"])

    @property
    def admin_key(self) -> str:
        """API key that may call /admin too."""
        return (self.data / "secrets" / "admin_key").read_text().strip()

    @property
    def runs(self) -> bool:
        """Whether the supervisor runs."""
        return self.child is not None and self.child.poll() is None

    @property
    def output(self) -> str:
        """Everything that `up` printed."""
        return (self.data.parent / f"{self.data.name}.out").read_text()

    def begin(self) -> None:
        """Start `millstream up`, without waiting for anything."""
        assert not self.runs
        with (self.data.parent / f"{self.data.name}.out").open("ab") as out:
            self.child = subprocess.Popen(
                [MILLSTREAM, "up", "--data", str(self.data), "--engine", self.engine, *_ANY_PORTS],
                env=_environment(self.settings),
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def up(self, within_s: float = 120.0) -> float:
        """Start and wait until it is ready; return after how many seconds it was."""
        began_s = time.monotonic()
        self.begin()
        done = threading.Event()
        asking = threading.Thread(target=self._ask_while_starting, args=(done,))
        asking.start()
        try:
            found = self.command("status", "--wait", str(within_s), "--json", within_s=within_s + 9)
        finally:
            done.set()
            asking.join()
        self.ready_after_s = time.monotonic() - began_s
        assert found.returncode == 0, self.output + found.stdout + found.stderr
        self.shown = json.loads(found.stdout)
        return self.ready_after_s

    def command(self, name: str, *arguments: str, within_s: float = 90.0) -> Any:
        """Run `millstream NAME` on this data folder; its completed process."""
        return run_command(name, *arguments, "--data", str(self.data), within_s=within_s)

    def status(self) -> dict[str, Any]:
        """Return what `status --json` says now."""
        shown: dict[str, Any] = json.loads(self.command("status", "--json").stdout)
        return shown

    def process(self, name: str) -> dict[str, Any]:
        """Return one process as `status` shows it."""
        entries: list[dict[str, Any]] = self.status()["processes"]
        return next(entry for entry in entries if entry["name"] == name)

    def make_key(self, org: str) -> tuple[str, str]:
        """Make an API key; return its id and its secret once it works."""
        made = self.command("keys", "create", "--org", org, "--json")
        assert made.returncode == 0, made.stderr
        shown = json.loads(made.stdout)
        eventually(lambda: self.models(shown["key"]) == 200, 2.0, "a new key works")
        return shown["id"], shown["key"]

    def models(self, key: str) -> int:
        """Return the status of GET /v1/models with a key."""
        headers = {"authorization": f"Bearer {key}"}
        return httpx.get(f"{self.url}/v1/models", headers=headers, trust_env=False).status_code

    def audit(self) -> tuple[int, dict[str, Any]]:
        """Return the exit status and the report of `millstream audit --json`."""
        done = self.command("audit", "--json")
        assert done.returncode in (0, 1), done.stderr
        return done.returncode, json.loads(done.stdout)

    def check_audit(self) -> dict[str, Any]:
        """Return the audit's report, having checked that log and ClickHouse agree."""
        status, report = self.audit()
        assert status == 0, json.dumps(report["differences"][:10], indent=1)
        return report

    @contextmanager
    def analyst(self) -> Iterator[Any]:
        """Yield ClickHouse's official client, connected as the platform's user."""
        port = int(self.shown["endpoints"]["clickhouse"].rpartition(":")[2])
        client = clickhouse_connect.get_client(
            host="127.0.0.1",
            port=port,
            username="millstream",
            password=(self.data / "secrets" / "clickhouse_password").read_text().strip(),
            database="millstream",
        )
        try:
            yield client
        finally:
            client.close()

    def usage_of(self, request_ids: list[str]) -> dict[str, tuple[int, int, str | None]]:
        """Return input tokens, output tokens and close reason by request id, from the view."""
        with self.analyst() as client:
            found = client.query(
                "SELECT request_id, input_tokens, output_tokens, close_reason FROM usage "
                "WHERE request_id IN {ids:Array(String)}",
                parameters={"ids": request_ids},
            )
            rows = found.result_rows
        by_id = {row[0]: (row[1], row[2], row[3]) for row in rows}
        assert len(by_id) == len(rows), "the view shows a request twice"
        return by_id

    def totals(self) -> dict[str, dict[str, Any]]:
        """Return GET /admin/v1/usage-totals by org."""
        key = self.admin_key
        answer = httpx.get(
            f"{self.url}/admin/v1/usage-totals",
            headers={"authorization": f"Bearer {key}"},
            trust_env=False,
        )
        assert answer.status_code == 200, answer.text
        return {row["org"]: row for row in answer.json()["data"]}

    def engine_load(self) -> int:
        """Return how many requests the engine of worker-0 has, running and waiting."""
        values = self.metrics("worker-0")
        return round(values["millstream_engine_running"] + values["millstream_engine_waiting"])

    def metrics(self, name: str) -> dict[str, float]:
        """Return a process's unlabelled metrics."""
        entries = self.shown["processes"]
        url = next(entry["metrics"] for entry in entries if entry["name"] == name)
        lines = httpx.get(url, trust_env=False).text.splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {series: float(value) for series, _, value in pairs}

    def kill(self, name: str) -> int:
        """End a process with SIGKILL; return the pid it had."""
        pid = int(self.process(name)["pid"])
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_back(self, name: str, killed_pid: int, within_s: float) -> float:
        """Wait until a killed process runs again and everything is ready; return the seconds."""

        def back() -> bool:
            shown = self.status()
            entry = next(e for e in shown["processes"] if e["name"] == name)
            restarted = entry["pid"] not in (None, killed_pid) and entry["restarts"] > 0
            return bool(shown["ready"] and restarted and entry["ready"])

        return eventually(back, within_s, f"{name} runs again after kill -9")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal the supervisor and return its exit status."""
        assert self.child is not None
        self.child.send_signal(number)
        return self.child.wait(STOP_WITHIN_S)

    def end(self) -> None:
        """End everything of this platform, also what a killed supervisor left behind."""
        if self.child is not None and self.child.poll() is None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
        if self.data.is_dir():
            for entry in orphans.left_behind(self.data / "run"):
                orphans.signal_group(entry.pid, signal.SIGKILL)

    def tree(self) -> list[psutil.Process]:
        """Return the supervisor and all that runs below it."""
        assert self.child is not None
        root = psutil.Process(self.child.pid)
        return [root, *root.children(recursive=True)]

    def _ask_while_starting(self, done: threading.Event) -> None:
        """Send requests from the moment on that the public address stands in DIR/state.json."""
        state = self.data / "state.json"
        began = time.time()
        while not done.wait(0.05):
            if state.exists() and state.stat().st_mtime > began:
                break
        if done.is_set():
            return
        url = json.loads(state.read_text())["endpoints"]["public"]
        body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
        with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
            while not done.wait(0.3):
                self.while_starting.append(self._ask(client, body))

    def _ask(self, client: httpx.Client, body: dict[str, object]) -> Answer:
        key = self.data / "secrets" / "dev_key"
        headers = {"authorization": f"Bearer {key.read_text().strip() if key.exists() else 'none'}"}
        try:
            answer = client.post("/v1/chat/completions", json=body, headers=headers)
        except httpx.HTTPError as error:
            return Answer(status=0, why=repr(error))
        return Answer(
            status=answer.status_code,
            retry_after=answer.headers.get("retry-after"),
            why=answer.text[:200],
        )


def _environment(settings: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name[:11] != "MILLSTREAM_"}
    return {**kept, **settings}
