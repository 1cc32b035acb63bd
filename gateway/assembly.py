"""A gateway's parts on real adapters, in the order in which they start and stop.

Owns construction and the background tasks. The only module of the package that names Kafka; the
composition root calls it, tests and the simulator put the same parts on the memory log.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from gateway.batches.items import Items
from gateway.batches.placement import runner_of
from gateway.batches.service import Batches, BatchWiring
from gateway.bodies import BodyReader
from gateway.cross_origin import CrossOrigin
from gateway.deps import Deps
from gateway.garbage import GarbageTurns
from gateway.limiting import require_month
from gateway.parts import Parts, Wiring, build_parts
from gateway.prompts import Prompts
from gateway.quota import Quota
from gateway.rereading import OpenReader
from gateway.serving import grammars_of, model_card, preferred_partition, served_model
from gateway.totals import TotalsTail, TotalsView
from infra.config import Config
from infra.control import Bury, ControlTail, ControlView
from infra.dead_letters import DeadLetters
from infra.errors import StartupError
from infra.fleet import FleetReporter, FleetTail, FleetView
from infra.health import HealthServer
from infra.kafka import KafkaReader, KafkaWriter
from infra.metrics import Metrics
from infra.ports import Clock, Entropy, LogReader
from infra.system import SystemClock, SystemEntropy
from infra.tokenizer import Tokenizer
from infra.watched_writer import Pulse, WatchedWriter
from schemas import limits
from schemas.operations import ProcessReported, ProcessState

__all__ = ["Gateway"]

_LOAD_AGAIN_S = 1.0


class _Connects(Protocol):
    async def start(self) -> None: ...

    async def close(self) -> None: ...


class Gateway:
    """All parts of one gateway process but its HTTP server."""

    def __init__(
        self, config: Config, log: FilteringBoundLogger, on_death: Callable[[], None]
    ) -> None:
        """Make the parts; `on_death` is called where one of them dies of a bug."""
        clock, entropy, bootstrap = SystemClock(), SystemEntropy(), config.kafka
        self._config, self._log, self._on_death = config, log, on_death
        self._incarnation = f"{config.process}/{entropy.uuid()}"
        self.draining = False
        self.died = False

        def writer(purpose: str) -> KafkaWriter:
            return KafkaWriter(bootstrap, client_id=f"{config.process}-{purpose}")

        def reader(purpose: str) -> KafkaReader:
            return KafkaReader(bootstrap, client_id=f"{config.process}-{purpose}")

        async def open_reader() -> LogReader:
            opened = reader("reread")
            await opened.start()
            return opened

        # Separate writers: back-pressure on requests must not delay closes or reports (rule 15).
        self._requests, self._closes = writer("requests"), writer("closes")
        self._claims, self._status = writer("claims"), writer("status")
        self._demands = writer("demands")
        self._reply_log, self._control_log = reader("replies"), reader("control")
        self._fleet_log, self._totals_log = reader("fleet"), reader("totals")
        self._claim_log, self._grants_log = reader("idempotency"), reader("grants")
        self._batch_log, self._batch_facts = reader("batches"), writer("batches")
        bury = DeadLetters(self._status, clock, config.process).bury
        control, totals = ControlView(), TotalsView()
        self._fleet = FleetView()
        self._control_tail = ControlTail(self._control_log, control, bury)
        self._fleet_tail = FleetTail(self._fleet_log, self._fleet)
        self._totals_tail = TotalsTail(self._totals_log, totals)
        # Reports go out once a second: silence shows also where nobody sends requests.
        pulse = Pulse(clock)
        self._reporter = FleetReporter(WatchedWriter(self._status, pulse), self._report)
        self._prompts = Prompts(
            lambda: Tokenizer.load(config.model_path, clock), config.context_tokens
        )
        self._parts = self._make_parts(clock, entropy, control, pulse, open_reader, bury)
        self._metrics = Metrics()
        self._quota = self._make_quota(clock, self._metrics)
        self._grammars = grammars_of(config, self._prompts)
        self._batches = self._make_batches(
            clock,
            entropy,
            open_reader,
            bury,
            lambda org: require_month(control.limits.get(org), totals, clock.now_ms()),
        )
        self.deps = self._deps(clock, entropy, control, totals)
        self._health = HealthServer(
            "127.0.0.1",
            config.health_port,
            self.deps.metrics,
            ready=lambda: self.unready() is None,
            health=lambda: True,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._fuse: asyncio.TimerHandle | None = None

    def unready(self) -> str | None:
        """Return why requests cannot be served yet, or None."""
        if self.draining:
            return "this gateway is shutting down"
        if not self._control_tail.caught_up:
            return "the platform is starting: its log is not read yet"
        if not self.deps.control.created:
            # A good key is not called wrong only because the first ones are still to be written.
            return "the platform is starting: no API key was made yet"
        if not self._prompts.loaded:
            return "the platform is starting: the model is not there yet"
        if not self._parts.replies.started:
            return "the platform is starting: replies are not read yet"
        if not self._parts.claim_tail.caught_up:
            return "the platform is starting: idempotency keys are not read yet"
        return None

    def start(self) -> None:
        """Connect and run everything in the background; ready when `unready` says so."""
        for work in (
            self._serve_health(),
            self._load_tokenizer(),
            self._after(self._requests),
            self._after(self._closes),
            self._after(self._status, self._reporter.run()),
            self._after(self._control_log, self._control_tail.run()),
            self._after(self._fleet_log, self._fleet_tail.run()),
            self._after(self._totals_log, self._totals_tail.run()),
            self._after(self._claims),
            self._after(self._demands),
            self._after(self._grants_log, self._quota.run()),
            self._after(self._claim_log, self._parts.claim_tail.run()),
            self._after(self._batch_facts),
            self._after(self._batch_log, self._batches.tail.run()),
            self._batches.run(),
            self._after(self._reply_log, self._parts.replies.run()),
            self._parts.run(),
            GarbageTurns(lambda: self.deps.submission.open_count).run(),
        ):
            task = asyncio.create_task(work)
            task.add_done_callback(self._complain)
            self._tasks.append(task)

    def begin_drain(self) -> None:
        """Refuse new requests, and cut what is still open when the bound has passed."""
        self.draining = True
        self.deps.submission.drain()
        self._batches.drain()
        self._fuse = asyncio.get_running_loop().call_later(
            limits.GATEWAY_DRAIN_MS / 1000,
            self.deps.submission.close_all,
            "this gateway is shutting down",
        )

    async def stop(self) -> None:
        """Finish closes, say goodbye, release connections; every step is bounded."""
        if self._fuse is not None:
            self._fuse.cancel()
        await self._batches.stop()
        await self._parts.stop(limits.CLOSE_READ_BACK_MS / 1000)
        await self._quota.stop()
        if self._control_tail.caught_up:  # else there is nobody to say goodbye to
            await self._reporter.say_goodbye()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._health.stop()
        await self.deps.grammars.stop()
        await asyncio.gather(
            *(part.close() for part in self._connections()), return_exceptions=True
        )

    def _make_quota(self, clock: Clock, metrics: Metrics) -> Quota:
        return Quota(
            clock=clock,
            reader=self._grants_log,
            writer=self._demands,
            gateway=self._incarnation,
            metrics=metrics,
            live_gateways=lambda: len(self._fleet.live("gateway")),
        )

    def _deps(
        self,
        clock: Clock,
        entropy: Entropy,
        control: ControlView,
        totals: TotalsView,
    ) -> Deps:
        config = self._config
        return Deps(
            clock=clock,
            entropy=entropy,
            log=self._log,
            metrics=self._metrics,
            control=control,
            submission=self._parts.submission,
            keyed=self._parts.keyed,
            tails=self._parts.tails,
            closer=self._parts.closer,
            orphans=self._parts.orphans,
            prompts=self._prompts,
            grammars=self._grammars,
            totals=totals,
            quota=self._quota,
            bodies=BodyReader(),
            batches=self._batches,
            model=served_model(config),
            card=model_card(config, clock.now_ms()),
            locator_key=config.locator_key,
            unready=self.unready,
            keepalive_ms=config.keepalive_ms,
            cross_origin=CrossOrigin.of(config.cors_origins),
        )

    def _make_parts(
        self,
        clock: Clock,
        entropy: Entropy,
        control: ControlView,
        pulse: Pulse,
        open_reader: OpenReader,
        bury: Bury,
    ) -> Parts:
        config = self._config
        return build_parts(
            Wiring(
                clock=clock,
                entropy=entropy,
                control=control,
                live_workers=lambda: self._fleet.live("worker", config.pool),
                partition=preferred_partition(config.process),
                reply_reader=self._reply_log,
                claim_reader=self._claim_log,
                open_reader=open_reader,
                requests=WatchedWriter(self._requests, pulse),
                closes=self._closes,
                claims=self._claims,
                gateway=self._incarnation,
                model=served_model(config),
                bury=bury,
                inflight_max=config.gateway_inflight_max,
                log_silent_s=pulse.silent_s,
                grace_ms=config.resumable_grace_ms,
            )
        )

    def _make_batches(
        self,
        clock: Clock,
        entropy: Entropy,
        open_reader: OpenReader,
        bury: Bury,
        require_month: Callable[[str], None],
    ) -> Batches:
        return Batches(
            BatchWiring(
                clock=clock,
                entropy=entropy,
                log=self._log,
                metrics=self._metrics,
                reader=self._batch_log,
                writer=self._batch_facts,
                open_reader=open_reader,
                items=Items(
                    clock=clock,
                    entropy=entropy,
                    keyed=self._parts.keyed,
                    prompts=self._prompts,
                    grammars=self._grammars,
                    locator_key=self._config.locator_key,
                    model=self._config.model,
                    log=self._log,
                    require_month=require_month,
                ),
                pool=self._config.pool,
                runs_here=self._runs_here,
                bury=bury,
            )
        )

    def _runs_here(self, batch_id: str) -> bool:
        """Tell whether a batch is this gateway's to run: it serves, and nobody goes before it."""
        if self.unready() is not None:
            return False
        live = self._fleet.live("gateway", self._config.pool)
        return runner_of(batch_id, live) == self._config.process

    def _connections(self) -> tuple[_Connects, ...]:
        return (
            self._requests,
            self._closes,
            self._claims,
            self._status,
            self._demands,
            self._reply_log,
            self._claim_log,
            self._grants_log,
            self._batch_facts,
            self._batch_log,
            self._control_log,
            self._fleet_log,
            self._totals_log,
        )

    async def _after(
        self, connection: _Connects, work: Coroutine[None, None, None] | None = None
    ) -> None:
        """Connect, however long that takes, then do the work."""
        try:
            await connection.start()
            if work is not None:
                await work
        finally:
            if work is not None:
                work.close()  # no effect once it has run

    async def _serve_health(self) -> None:
        if self._config.health_port:
            await self._health.start()

    async def _load_tokenizer(self) -> None:
        """Load the model's tokenizer; a worker may still be preparing the model's folder."""
        missing = False
        while not self._prompts.loaded:
            try:
                await self._prompts.load()
            except StartupError as error:
                if not missing:
                    self._log.info("waiting for the model", why=str(error))
                missing = True
                await asyncio.sleep(_LOAD_AGAIN_S)

    def _report(self) -> ProcessReported:
        state = ProcessState.SERVING
        if self.unready() is not None:
            state = ProcessState.DRAINING if self.draining else ProcessState.LOADING
        return ProcessReported(
            process=self._config.process,
            incarnation=self._incarnation,
            kind="gateway",
            state=state,
            pool=self._config.pool,
            running=self.deps.submission.open_count,
        )

    def _complain(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("a background task died", exc_info=error)
            self.died = True
            self._on_death()
