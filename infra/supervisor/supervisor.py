"""`millstream up`: one platform on one machine, from the first check to the last drained process.

Owns the run as a whole: data folder, leftovers, start, signals, state file, drain. The parts are
`folder.py`, `leftovers.py`, `startup.py` (order of start) and `nursery.py` (keeping processes up).
"""

import asyncio
import dataclasses
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from infra.config import Config
from infra.errors import InfraError, StartupError
from infra.kafka.departure import leave_for
from infra.membership import Membership
from infra.ports import Clock, Entropy
from infra.supervisor.credentials import Credentials, obtain
from infra.supervisor.death_notice import DeathNotices
from infra.supervisor.folder import DataFolder
from infra.supervisor.keeper import Keeper, KeeperState
from infra.supervisor.leftovers import end_leftovers, listed
from infra.supervisor.nursery import Nursery
from infra.supervisor.plan import STOP_ORDER, kind_of
from infra.supervisor.startup import External, Layout, Startup, lay_out
from infra.supervisor.state import PlatformState, ProcessEntry, write_state
from schemas import limits

__all__ = ["SupervisorDeps", "supervise"]

_log = structlog.get_logger()
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorDeps:
    """What a supervisor is given."""

    config: Config
    external: External
    environ: Mapping[str, str]
    clock: Clock
    entropy: Entropy
    say: Callable[[str], None]


async def supervise(deps: SupervisorDeps, folder: DataFolder) -> int:
    """Run the platform on an opened `folder` until a signal; return the exit status.

    Raises: StartupError where it cannot start; everything is drained then.
    """
    return await _Supervisor(deps, folder).run()


class _Supervisor:
    def __init__(self, deps: SupervisorDeps, folder: DataFolder) -> None:
        self._deps, self._folder = deps, folder
        self._nursery = Nursery(folder, deps.clock, self._write_state)
        self._layout: Layout | None = None
        self._deaths = DeathNotices(folder.path, self._leave)
        self._away: set[str] = set()
        """Processes that died and are not ready again."""
        self._stop = asyncio.Event()
        self._stop_asked_s: float | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._note_signal, number)
        watch = asyncio.create_task(self._nursery.watch())
        life = asyncio.create_task(self._live())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({watch, life, stop}, return_when=asyncio.FIRST_COMPLETED)
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
            if watch.done():
                watch.result()
            if not life.cancelled():
                life.result()
            return 0
        finally:
            await self._drain()
            await self._deaths.stop()
            watch.cancel()
            stop.cancel()
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    async def _live(self) -> None:
        """Start, then wait for a process that cannot be kept running. Raises StartupError."""
        try:
            await self._start()
            await self._nursery.failed.wait()
            self._nursery.check()
        except BaseExceptionGroup as group:
            raise _first(group) from None

    async def _start(self) -> None:
        deps, started_s = self._deps, self._deps.clock.monotonic_s()
        await self._end_leftovers()
        credentials = obtain(self._folder.secrets, deps.entropy, deps.clock)
        config = deps.config
        config = dataclasses.replace(
            config,
            locator_key=config.locator_key or credentials.locator_key,
            clickhouse_password=config.clickhouse_password or credentials.clickhouse_password,
        )
        self._layout = layout = lay_out(config, deps.external, deps.entropy)
        self._deaths.all_ended()
        self._write_state(None)
        startup = Startup(
            layout=layout,
            folder=self._folder,
            nursery=self._nursery,
            environ=deps.environ,
            entropy=deps.entropy,
            say=deps.say,
        )
        await startup.run()
        took_s = deps.clock.monotonic_s() - started_s
        deps.say(_invitation(layout, credentials, took_s))
        startup.finish()

    async def _end_leftovers(self) -> None:
        """End what a killed supervisor left behind. Raises StartupError where that cannot be."""
        remaining = await end_leftovers(self._folder.run, self._deps.say)
        if remaining:
            raise StartupError(
                f"an earlier run left {listed(remaining)} behind, which cannot be ended: end it by "
                "hand, then start again"
            )

    async def _drain(self) -> None:
        layout = self._layout
        if self._nursery.keepers:
            self._deps.say("draining; a second Ctrl-C cuts it short")
        if layout is not None:
            layout.public.close()  # gateways hold it too, and close it when they stop accepting
        await self._nursery.drain(STOP_ORDER)
        self._folder.state.unlink(missing_ok=True)
        if self._nursery.keepers:
            self._deps.say("stopped; nothing is lost, `millstream up` goes on from here")

    def _note_signal(self, number: signal.Signals) -> None:
        now_s = self._deps.clock.monotonic_s()
        _log.info("signal", name=signal.Signals(number).name)
        if self._stop_asked_s is None:
            self._stop_asked_s = now_s
            self._stop.set()
        elif now_s - self._stop_asked_s > limits.SIGNAL_REPEAT_S:
            self._deps.say("stopping at once")
            self._nursery.hurry()

    async def _leave(self, dead: Membership) -> bool:
        assert self._layout is not None, "members have an address"
        return await leave_for(self._layout.config.kafka, dead)

    def _note_change(self, keeper: Keeper) -> None:
        """Tell the log, and who watches the terminal, that a process died; and when it is back."""
        name = keeper.spec.name
        if keeper.pid is None and keeper.state in (KeeperState.RESTARTING, KeeperState.FAILED):
            self._deaths.process_ended(name)
        if keeper.state is KeeperState.RESTARTING and name not in self._away:
            self._away.add(name)
            self._deps.say(f"{name} ended ({keeper.why}); starting it again")
        elif keeper.ready and name in self._away:
            self._away.discard(name)
            self._deps.say(f"{name} is back")

    def _write_state(self, changed: Keeper | None) -> None:
        if changed is not None:
            self._note_change(changed)
        layout = self._layout
        if layout is None:
            return
        entries = tuple(self._entry(keeper, layout) for keeper in self._nursery.keepers)
        state = PlatformState(
            pid=os.getpid(),
            ready=_serves(entries, layout),
            model=layout.config.model,
            endpoints=layout.endpoints,
            processes=entries,
        )
        try:
            write_state(self._folder.state, state)
        except OSError as error:
            _log.error("state_unwritten", why=error.strerror)  # a full disk must not end us here

    def _entry(self, keeper: Keeper, layout: Layout) -> ProcessEntry:
        probe, name = keeper.spec.probe, keeper.spec.name
        return ProcessEntry(
            name=name,
            pid=keeper.pid,
            state=keeper.state,
            ready=keeper.ready,
            restarts=keeper.restarts,
            health=_health_of(keeper, layout),
            probe=(probe.host, probe.port, probe.path),
        )


def _health_of(keeper: Keeper, layout: Layout) -> str | None:
    """Return where /health and /metrics of a process are; Kafka has none."""
    name, probe = keeper.spec.name, keeper.spec.probe
    match kind_of(name):
        case "kafka":
            return None
        case "clickhouse":  # its own address speaks ClickHouse's interface only
            return f"http://{probe.host}:{layout.services[name].health}"
        case _:
            return f"http://{probe.host}:{probe.port}"


def _serves(entries: tuple[ProcessEntry, ...], layout: Layout) -> bool:
    """Return whether requests can be served: all are ready but the stream-app, which may follow."""
    ready = {entry.name for entry in entries if entry.ready}
    needed = {entry.name for entry in entries} | set(layout.services)
    needed -= {"stream-app"} | ({"clickhouse"} if layout.external.clickhouse else set())
    return needed <= ready


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error to tell the operator about: one of ours before any other."""
    leaves: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        error = pending.pop(0)
        if isinstance(error, BaseExceptionGroup):
            pending.extend(error.exceptions)
        else:
            leaves.append(error)
    return next((error for error in leaves if isinstance(error, InfraError)), leaves[0])


def _invitation(layout: Layout, credentials: Credentials, took_s: float) -> str:
    url, key, model = layout.endpoints.public, credentials.dev.secret, layout.config.model
    body = (
        f'{{"model":"{model}","max_tokens":64,"stream":true,"messages":[{{"role":"user",'
        '"content":"What is the capital of France?"}]}'
    )
    return (
        f"ready in {took_s:.1f} s: {url} with the key {key}; try\n\n"
        f"  curl -N {url}/v1/messages -H 'x-api-key: {key}' -H 'anthropic-version: 2023-06-01' \\\n"
        f"    -H 'content-type: application/json' -d '{body}'\n"
    )
