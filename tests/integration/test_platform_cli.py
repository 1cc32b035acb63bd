"""The supervisor and its commands on a real platform: start, idle, refusals, drain, start again."""

import asyncio
import json
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import psutil

from infra.supervisor import orphans
from schemas.ids import find_request_id
from tests.integration.load import Load, ask, sdks
from tests.integration.platform import MODEL, SOAK, Platform, eventually, run_command

READY_WITHIN_S = 10.0 if SOAK else 20.0
STREAM_APP_WITHIN_S = 10.0 if SOAK else 20.0
IDLE_AFTER_S, IDLE_OVER_S, IDLE_CPU_SHARE = (30.0, 60.0, 0.15) if SOAK else (8.0, 12.0, 0.25)


def test_no_connection_is_refused_while_it_starts(platform: Platform) -> None:
    """From the moment its address is known a starting platform answers 529 with retry-after, then
    serves."""
    answers = platform.while_starting
    assert answers, "it was asked while starting"
    for answer in answers:
        assert answer.status in (529, 200), answer
        if answer.status == 529:
            assert answer.retry_after and 0 < int(answer.retry_after) <= 60
    print(f"{[answer.status for answer in answers]} while starting")


def test_status_shows_every_process(platform: Platform) -> None:
    """`status` names all processes, endpoints and the key; the ready line holds a curl to paste."""
    eventually(lambda: platform.process("stream-app")["ready"], 30.0, "stream-app follows")
    shown = platform.status()
    assert {entry["name"] for entry in shown["processes"]} == {
        *("gateway-0", "worker-0", "metering", "stream-app", "clickhouse", "kafka-0")
    }
    assert shown["ready"] and shown["dev_key"].startswith("sk-ms-")
    assert f"curl -N {platform.url}/v1/messages" in platform.output
    for entry in shown["processes"]:
        if entry["name"] != "kafka-0":
            assert httpx.get(entry["health"], trust_env=False).status_code == 200
            assert "millstream_" in httpx.get(entry["metrics"], trust_env=False).text
    text = platform.command("status").stdout
    assert text.startswith("ready") and "gateway-0" in text


def test_ask_streams_an_answer(platform: Platform) -> None:
    """`millstream ask` prints an answer of the running platform."""
    done = platform.command("ask", "Say", "anything", "--max-tokens", "20")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_a_second_up_on_the_same_data_is_refused(platform: Platform) -> None:
    """It exits 2 at once, names the running one and what to do; the first runs on."""
    second = run_command("up", "--data", str(platform.data), "--engine", "scripted", "--port", "0")
    assert second.returncode == 2
    assert platform.child is not None
    assert f"pid {platform.child.pid}" in second.stderr and "millstream down" in second.stderr
    assert platform.status()["ready"]


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    """`up` on a taken port exits 2 naming the port and its flag, and leaves nothing running."""
    flags = ("--port", "--kafka-port", "--clickhouse-port")
    for taken in flags:
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            port = str(holder.getsockname()[1])
            ports = [text for flag in flags for text in (flag, port if flag == taken else "0")]
            data = tmp_path / taken
            done = run_command("up", "--data", str(data), "--engine", "scripted", *ports)
        assert done.returncode == 2, done.stderr
        assert port in done.stderr and taken in done.stderr
        assert not list((data / "run").glob("*.json"))


def test_data_of_another_version_is_refused(tmp_path: Path) -> None:
    """`up` names both versions, exits 2 and changes nothing."""
    (tmp_path / "VERSION").write_text("99\n")
    done = run_command("up", "--data", str(tmp_path), "--engine", "scripted", "--port", "0")
    assert done.returncode == 2
    assert "version 99" in done.stderr and "another folder" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["VERSION"]


def test_commands_without_a_platform_say_what_to_do(tmp_path: Path) -> None:
    """Without a platform `status` exits 1 or 2 and `ask` and `audit` tell how to start one."""
    data = ("--data", str(tmp_path / "none"))
    assert run_command("status", *data).returncode in (1, 2)
    assert run_command("status", *data, "--json").stdout.startswith('{"ready": false')
    for command in (("ask", "hi"), ("audit",), ("keys", "list")):
        done = run_command(*command, *data)
        assert done.returncode == 2 and "millstream up" in done.stderr, command
    assert run_command("down", *data).returncode == 0


def test_down_names_what_it_cannot_end(tmp_path: Path) -> None:
    """A process that outlives SIGKILL is named, `down` exits 1 and its record stays for `up`."""
    (tmp_path / "run").mkdir()
    # It leads no session, unlike the supervisor's children: signals to its session do not reach it.
    process = subprocess.Popen(["sleep", "60"])
    try:
        own = psutil.Process(process.pid)
        eventually(lambda: own.cmdline() == ["sleep", "60"], 5.0, "it runs its program")
        orphans.record(tmp_path / "run", "worker-0", process.pid, ["sleep", "60"])
        done = run_command("down", "--data", str(tmp_path))
        assert done.returncode == 1
        assert f"cannot be ended: worker-0 (pid {process.pid})" in done.stderr
        assert "stopped" not in done.stdout
        assert [entry.name for entry in orphans.left_behind(tmp_path / "run")] == ["worker-0"]
    finally:
        process.kill()
        process.wait()


def test_idle_costs_little(platform: Platform) -> None:
    """An idle platform takes a small share of one core, all processes together."""
    assert platform.status()["ready"]
    time.sleep(IDLE_AFTER_S)
    before = _cpu_s(platform)
    time.sleep(IDLE_OVER_S)
    after = _cpu_s(platform)
    assert set(before) == set(after), "nothing was restarted meanwhile"
    used = {name: (after[name] - before[name]) / IDLE_OVER_S for name in after}
    print(f"idle: {sum(used.values()):.1%} of a core: {_shares(used)}")
    assert sum(used.values()) <= IDLE_CPU_SHARE, _shares(used)


def test_ctrl_c_drains_and_the_next_up_is_ready_soon(platform: Platform) -> None:
    """SIGINT, even twice at once, lets running replies end, refuses new ones politely and exits 0;
    started again, it is ready within its time and has lost nothing."""

    async def scenario() -> tuple[Load, int]:
        async with sdks(platform.url, platform.key) as clients:
            load = Load(clients)
            replies = [
                asyncio.create_task(
                    ask(clients, dialect, "Go on", stream=stream, max_tokens=300, ignore_eos=True)
                )
                for dialect in ("anthropic", "openai")
                for stream in (True, False)
            ]
            await asyncio.to_thread(eventually, lambda: platform.engine_load() >= 4, 5.0, "all run")
            assert platform.child is not None
            platform.child.send_signal(signal.SIGINT)
            stopping = asyncio.create_task(asyncio.to_thread(platform.stop, signal.SIGINT))
            load.finished += await asyncio.gather(*replies)
            return load, await stopping

    processes = platform.tree()
    began_s = time.monotonic()
    load, status = asyncio.run(scenario())
    print(f"drained in {time.monotonic() - began_s:.1f} s")
    assert status == 0, platform.output
    assert [process for process in processes if process.is_running()] == []
    assert {reply.output_tokens for reply in load.finished} == {300}

    took_s = platform.up()
    later_s = eventually(
        lambda: platform.process("stream-app")["ready"], STREAM_APP_WITHIN_S, "stream-app follows"
    )
    print(f"ready {took_s:.1f} s after a clean stop, stream-app {later_s:.1f} s later")
    assert took_s < READY_WITHIN_S
    told = {r.request_id: (r.input_tokens, r.output_tokens, None) for r in load.finished}
    assert platform.usage_of(list(told)) == told
    platform.check_audit()


def test_logs_hold_one_line_per_request(platform: Platform) -> None:
    """`millstream logs gateway-0` shows a request once, under the id inside the client's ids."""
    body = {"model": MODEL, "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
    headers = {"authorization": f"Bearer {platform.key}"}
    answer = httpx.post(
        f"{platform.url}/v1/chat/completions", json=body, headers=headers, trust_env=False
    )
    assert answer.status_code == 200
    request_id = find_request_id(answer.headers["request-id"])
    assert request_id == find_request_id(answer.json()["id"])

    def lines() -> list[str]:
        shown = platform.command("logs", "gateway-0").stdout.splitlines()
        return [line for line in shown if request_id in line]

    eventually(lambda: bool(lines()), 5.0, "the request is logged")
    (line,) = lines()
    assert json.loads(line)["output_tokens"] == answer.json()["usage"]["completion_tokens"]


def _cpu_s(platform: Platform) -> dict[str, float]:
    """Return the processor time that each process of the tree has used."""
    used = {}
    for process in platform.tree():
        times = process.cpu_times()
        used[f"{process.pid} {_what(process)}"] = times.user + times.system
    return used


def _what(process: psutil.Process) -> str:
    words = process.cmdline()
    return words[words.index("-m") + 1] if "-m" in words else Path(words[0]).name


def _shares(used: dict[str, float]) -> str:
    return ", ".join(f"{name} {share:.1%}" for name, share in used.items())
