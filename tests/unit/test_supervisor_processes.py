"""The supervisor's hold on real processes, tried on tiny ones."""

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from infra.errors import StartupError
from infra.supervisor.child import ProcessSpec
from infra.supervisor.errand import run_errand
from infra.supervisor.folder import DataFolder
from infra.supervisor.keeper import Decide, KeeperState
from infra.supervisor.nursery import Nursery
from infra.supervisor.priority import GENTLE, GENTLEST, NORMAL, may_raise_again
from infra.supervisor.probe import Probe
from infra.supervisor.restarts import Restarts, after_exit
from infra.supervisor.sockets import free_port, listen
from infra.system import SystemClock, SystemEntropy

# Listens on argv[1], notes its stop in argv[2]; answers nothing, a connection is enough.
SERVER = """
import signal, socket, sys, time
opened = socket.create_server(("127.0.0.1", int(sys.argv[1])))
def stop(*_):
    open(sys.argv[2], "a").write(f"{sys.argv[3]}\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
while True:
    time.sleep(60)
"""
STUBBORN = """
import signal, socket, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
opened = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    time.sleep(60)
"""


def never_again(state: Restarts, now_s: float, ran_s: float) -> tuple[Restarts, float | None]:
    """Give up at the first exit."""
    return after_exit(state, now_s, ran_s)[0], None


def spec(name: str, tmp_path: Path, code: str = SERVER, stop_within_s: float = 5.0) -> ProcessSpec:
    """Return a tiny process that counts as ready once it listens."""
    port = free_port(SystemEntropy())
    arguments = (str(port), str(tmp_path / "stops"), name)
    return ProcessSpec(
        name=name,
        command=(sys.executable, "-S", "-c", code, *arguments),
        environ=dict(os.environ),
        probe=Probe(host="127.0.0.1", port=port, path=None),
        stop_within_s=stop_within_s,
    )


def in_nursery(
    tmp_path: Path, scenario: Callable[[Nursery], Awaitable[None]], decide: Decide = after_exit
) -> None:
    """Run a scenario with a watched nursery on a fresh folder, then drain it."""

    async def run() -> None:
        folder = DataFolder(tmp_path / "data")
        lock = folder.open()
        nursery = Nursery(folder, SystemClock(), lambda _: None, decide)
        watch = asyncio.create_task(nursery.watch())
        try:
            async with asyncio.timeout(30):
                await scenario(nursery)
        finally:
            await nursery.drain(("gateway", "worker", "kafka"))
            watch.cancel()
            os.close(lock)

    asyncio.run(run())


def test_a_killed_process_is_started_again(tmp_path: Path) -> None:
    """After kill -9 a process runs and is ready again, counted as one restart."""

    async def scenario(nursery: Nursery) -> None:
        nursery.start(spec("worker-0", tmp_path))
        await nursery.ready("worker-0")
        (keeper,) = nursery.keepers
        first = keeper.pid
        assert first is not None
        assert os.getsid(first) == first
        os.kill(first, signal.SIGKILL)
        for _ in range(500):
            if keeper.pid != first and keeper.ready:
                break
            await asyncio.sleep(0.02)
        assert (keeper.restarts, keeper.state, keeper.why) == (1, "running", "signal SIGKILL")

    in_nursery(tmp_path, scenario)


def shares(pid: int) -> tuple[int, int]:
    """Return a process's nice value and its session's, as the kernel tells them."""
    group = Path(f"/proc/{pid}/autogroup")
    weight = int(group.read_text().split()[-1]) if group.exists() else NORMAL
    return os.getpriority(os.PRIO_PROCESS, pid), weight


def test_a_background_process_gives_way_once_it_is_ready(tmp_path: Path) -> None:
    """It starts as quickly as the others, and then leaves the processor to those that serve."""
    grouped = Path("/proc/self/autogroup").exists()
    own = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = (max(own, GENTLE) if may_raise_again() else own, GENTLE if grouped else NORMAL)

    async def scenario(nursery: Nursery) -> None:
        nursery.start(dataclasses.replace(spec("metering", tmp_path), niceness=GENTLE))
        await nursery.ready("metering")
        (keeper,) = nursery.keepers
        assert keeper.pid is not None
        while shares(keeper.pid) != wanted:  # noqa: ASYNC110  # the kernel takes its time
            await asyncio.sleep(0.02)
        for _ in range(20):  # a busy machine makes probes fail: no reason to take more of it
            keeper.note_ready(False)
            await asyncio.sleep(0.02)
            assert shares(keeper.pid) == wanted

    in_nursery(tmp_path, scenario)


def test_a_restarted_process_loads_gently_until_it_is_ready(tmp_path: Path) -> None:
    """Its session has little weight while it loads and the usual one once it is ready."""
    seen: list[tuple[int, int]] = []
    slow = SERVER.replace("opened =", "time.sleep(1); opened =")

    async def scenario(nursery: Nursery) -> None:
        nursery.start(dataclasses.replace(spec("worker-0", tmp_path, slow), loads_gently=True))
        await nursery.ready("worker-0")
        (keeper,) = nursery.keepers
        first = keeper.pid
        assert first is not None
        seen.append(shares(first))
        os.kill(first, signal.SIGKILL)
        while keeper.pid in (None, first):  # noqa: ASYNC110  # as an operator sees it
            await asyncio.sleep(0.01)
        assert keeper.pid is not None
        seen.append(shares(keeper.pid))
        await nursery.ready("worker-0")
        # The kernel takes ten changes a second at most.
        while shares(keeper.pid) != seen[0]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    in_nursery(tmp_path, scenario)
    (own, weight), (loading, loading_weight) = seen
    grouped = Path("/proc/self/autogroup").exists()
    assert loading == (GENTLEST if may_raise_again() else own)
    assert (weight, loading_weight) == (NORMAL, GENTLEST if grouped else NORMAL)


def test_stages_drain_one_after_the_other(tmp_path: Path) -> None:
    """Gateways stop before workers, workers before Kafka, and none is killed."""

    async def scenario(nursery: Nursery) -> None:
        for name in ("kafka-0", "worker-0", "gateway-0"):
            nursery.start(spec(name, tmp_path))
        await nursery.ready("kafka-0", "worker-0", "gateway-0")

    in_nursery(tmp_path, scenario)
    assert (tmp_path / "stops").read_text().split() == ["gateway-0", "worker-0", "kafka-0"]
    assert list((tmp_path / "data" / "run").iterdir()) == []


def test_a_process_that_ignores_sigterm_is_killed_at_the_end_of_its_time(tmp_path: Path) -> None:
    """Draining ends although a process does not."""
    started_s = time.monotonic()

    async def scenario(nursery: Nursery) -> None:
        nursery.start(spec("worker-0", tmp_path, STUBBORN, stop_within_s=0.3))
        await nursery.ready("worker-0")

    in_nursery(tmp_path, scenario)
    assert time.monotonic() - started_s < 5


def test_a_hopeless_process_is_given_up_with_its_last_lines(tmp_path: Path) -> None:
    """Waiting for a process that keeps ending fails, quoting why it ended and what it said."""

    async def scenario(nursery: Nursery) -> None:
        hopeless = "import sys; print('the reason'); sys.exit(3)"
        nursery.start(spec("gateway-0", tmp_path, hopeless))
        with pytest.raises(StartupError, match=r"gateway-0 .*exit status 3(.|\n)*the reason"):
            await nursery.ready("gateway-0")
        assert nursery.failed.is_set()
        assert [keeper.state for keeper in nursery.keepers] == [KeeperState.FAILED]

    in_nursery(tmp_path, scenario, never_again)


def test_what_a_process_started_ends_with_it(tmp_path: Path) -> None:
    """A process's own children do not outlive it."""
    parent = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"
        "open(sys.argv[2], 'w').write(str(child.pid))\n"
    )

    async def scenario(nursery: Nursery) -> None:
        nursery.start(spec("worker-0", tmp_path, parent))
        await nursery.failed.wait()
        grandchild = int((tmp_path / "stops").read_text())
        for _ in range(100):
            if not _runs(grandchild):
                return
            await asyncio.sleep(0.02)
        raise AssertionError("it still runs")

    in_nursery(tmp_path, scenario, never_again)


def test_a_process_inherits_the_public_socket(tmp_path: Path) -> None:
    """A connection made before the process runs is answered once it does."""
    answer = (
        "import socket, sys, time\n"
        "public = socket.socket(fileno=int(sys.argv[3]))\n"
        "public.accept()[0].sendall(b'hello')\n"
        "opened = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "time.sleep(60)\n"
    )

    async def scenario(nursery: Nursery) -> None:
        with listen("127.0.0.1", 0, "--port") as public:
            reader, writer = await asyncio.open_connection(*public.getsockname())
            plain = spec("gateway-0", tmp_path, answer)
            nursery.start(
                ProcessSpec(
                    name="gateway-0",
                    command=(*plain.command[:-1], str(public.fileno())),
                    environ=plain.environ,
                    probe=plain.probe,
                    listen_fd=public.fileno(),
                )
            )
            assert await reader.readexactly(5) == b"hello"
            writer.close()

    in_nursery(tmp_path, scenario)


def test_children_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    """kill -9 of the supervising process ends its children."""
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from infra.supervisor.child import Child, ProcessSpec\n"
        "from infra.supervisor.probe import Probe\n"
        "spec = ProcessSpec(name='x', command=(sys.executable, '-S', '-c',\n"
        "    'import time; time.sleep(60)'), environ={},\n"
        "    probe=Probe(host='127.0.0.1', port=1, path=None))\n"
        "print(Child(spec, Path(sys.argv[1]), Path(sys.argv[1])).pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert supervisor.stdout is not None
    child = int(supervisor.stdout.readline())
    assert _runs(child)
    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()
    for _ in range(250):
        if not _runs(child):
            return
        time.sleep(0.02)
    raise AssertionError("the child still runs")


def test_an_errand_reports_progress_and_failure(tmp_path: Path) -> None:
    """An errand's lines are shown as they come; its failure quotes its log."""
    folder, said = DataFolder(tmp_path / "data"), list[str]()

    async def run(code: str) -> None:
        command = (sys.executable, "-S", "-c", code)
        await run_errand("model", command, dict(os.environ), folder, said.append)

    lock = folder.open()
    try:
        asyncio.run(run("print('half'); print('done')"))
        assert said == ["half", "done"]
        with pytest.raises(StartupError, match=r"exit status 4(.|\n)*no such wheel"):
            asyncio.run(run("import sys; sys.stderr.write('no such wheel\\n'); sys.exit(4)"))
    finally:
        os.close(lock)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
