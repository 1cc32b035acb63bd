"""A real HTTP server over the gateway on the memory log, for the gateway's HTTP tests.

The tokenizer has one token per byte, so that a script says text by its bytes.
"""

import asyncio
import atexit
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from gateway.app import build_app
from gateway.batches.items import Items
from gateway.batches.service import Batches, BatchWiring
from gateway.bodies import BodyReader
from gateway.cross_origin import CrossOrigin
from gateway.deps import Deps
from gateway.grammar_compiling import GrammarCompiler, compiler_command
from gateway.grammars import Grammars
from gateway.limiting import require_month
from gateway.parts import Parts
from gateway.prompts import Prompts
from gateway.quota import Quota
from gateway.server import HttpServer, listen
from gateway.totals import TotalsView
from infra.chat_template import ChatTemplate
from infra.dead_letters import DeadLetters
from infra.keys import create_key
from infra.memory import MemoryBroker
from infra.metrics import Metrics
from infra.ports import LogReader
from infra.system import SystemClock, SystemEntropy
from infra.tokenizer import Tokenizer
from schemas import limits
from schemas.dialects.models import ModelCard
from schemas.operations import ControlRecord
from streams.stream_app.quota import QuotaService
from tests.gateway_platform import POOL, Platform, Script, answer_hello, platform

MODEL = "m"
CONTEXT_TOKENS = 4_096
_CARD = ModelCard(
    id=MODEL, display_name="M", created_ms=0, max_input_tokens=4_095, max_tokens=4_095
)
_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
_LOCATOR_KEY = b"k" * 32


def byte_tokenizer() -> tokenizers.Tokenizer:
    """Return a tokenizer of 256 tokens, one per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    made = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


_BYTES = byte_tokenizer()


def ids_of(text: str) -> list[int]:
    """Return the token ids of a text."""
    return list(_BYTES.encode(text).ids)


@cache
def byte_model() -> Path:
    """Return a folder that holds the tokenizer, for the grammar compiler."""
    folder = Path(tempfile.mkdtemp(prefix="millstream-"))
    atexit.register(shutil.rmtree, folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def byte_compiler() -> GrammarCompiler:
    """Return a grammar compiler over one token per byte."""
    return GrammarCompiler(lambda: compiler_command(byte_model(), 256, 255))


def load_tokenizer() -> Tokenizer:
    """Return the product's tokenizer over one token per byte."""
    return Tokenizer(
        tokenizer=byte_tokenizer(), template=ChatTemplate(_TEMPLATE, {}), eos_ids=frozenset()
    )


class LineLog:
    """Keeps log lines; enough of a bound logger for the gateway."""

    def __init__(self) -> None:
        self.lines: list[dict[str, object]] = []

    def info(self, event: str, **fields: object) -> None:
        """Keep a line."""
        self.lines.append({"event": event, **fields})

    debug = warning = error = info


@dataclass(kw_only=True)
class Served:
    """A gateway that answers on a port."""

    platform: Platform
    deps: Deps
    url: str
    urls: list[str]
    """One for each gateway; the first is `url`."""
    key: str
    admin_key: str
    log: LineLog
    all_deps: list[Deps] = field(default_factory=list)
    """One for each gateway; the first is `deps`."""
    service: list[asyncio.Task[None]] = field(default_factory=list)
    """The quota service's task, where it runs."""
    unready: list[str] = field(default_factory=list)
    """Put a reason here and the gateway is not ready."""
    batches: list[Batches] = field(default_factory=list)
    """By gateway."""
    runners: list[bool] = field(default_factory=list)
    """Whether each gateway runs batches: all of them do where several are true."""

    def make_key(self, org: str) -> str:
        """Make a key of another org; return its secret."""
        return _make_key(self.platform, admin=False, org=org)


@asynccontextmanager
async def serve(
    script: Script = answer_hello,
    *,
    keepalive_ms: int = limits.KEEPALIVE_MS,
    slow_client_ms: int = limits.SLOW_CLIENT_MS,
    body_bytes_max: int = limits.HTTP_BODY_BYTES_MAX,
    send_buffer_bytes: int | None = None,
    admit_within_ms: int = limits.ADMIT_WITHIN_MS,
    deadline_ms: int = limits.DEADLINE_MS,
    gateway_count: int = 1,
    grace_ms: int = limits.RESUMABLE_GRACE_MS,
    context_tokens: int = CONTEXT_TOKENS,
    cors_origins: str = "",
    quota: bool = False,
) -> AsyncIterator[Served]:
    """Serve a gateway on a free port until the block ends."""
    async with platform(
        script,
        context_tokens=context_tokens,
        admit_within_ms=admit_within_ms,
        deadline_ms=deadline_ms,
        gateway_count=gateway_count,
        grace_ms=grace_ms,
    ) as core:
        secrets = [_make_key(core, admin=admin) for admin in (False, True)]
        prompts = Prompts(load_tokenizer, context_tokens)
        await prompts.load()
        grammars = Grammars(prompts=prompts, compiler=byte_compiler())
        log, unready, totals = LineLog(), list[str](), TotalsView()
        runners = [number == 0 for number in range(gateway_count)]
        batches = [
            _batches(number, core, log, grammars, prompts, runners, totals)
            for number in range(gateway_count)
        ]
        made = [
            replace(
                _deps(parts, core, log, grammars, prompts, unready, own, totals),
                bodies=BodyReader(body_bytes_max),
                keepalive_ms=keepalive_ms,
                slow_client_ms=slow_client_ms,
                cross_origin=CrossOrigin.of(cors_origins),
            )
            for parts, own in zip(core.gateways, batches, strict=True)
        ]
        service = [quota_service(core.broker)] if quota else []
        tasks = _run(batches, [deps.quota for deps in made] if quota else [])
        listeners, servers = _servers(made, send_buffer_bytes)
        for server in servers:
            await server.start()
        urls = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
        try:
            yield Served(
                platform=core,
                deps=made[0],
                url=urls[0],
                urls=urls,
                key=secrets[0],
                admin_key=secrets[1],
                log=log,
                unready=unready,
                all_deps=made,
                service=service,
                batches=batches,
                runners=runners,
            )
        finally:
            await _stop(core, batches, [*tasks, *service], servers)
            await grammars.stop()


def quota_service(broker: MemoryBroker, name: str = "stream-app/1") -> asyncio.Task[None]:
    """Run a quota service on a broker until it is cancelled."""
    made = QuotaService(
        reader=broker.reader(f"{name}-demands"),
        writer=broker.writer(f"{name}-grants"),
        service=name,
        dead_letters=DeadLetters(broker.writer(f"{name}-dead"), SystemClock(), name),
        metrics=Metrics(),
    )
    return asyncio.create_task(made.run())


def _servers(
    made: list[Deps], send_buffer_bytes: int | None
) -> tuple[list[socket.socket], list[HttpServer]]:
    """Make a server for each gateway, and what it listens on."""
    listeners = [listen("127.0.0.1", 0) for _ in made]
    if send_buffer_bytes is not None:  # accepted sockets inherit it
        for listener in listeners:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    servers = [
        HttpServer(build_app(deps), [listener])
        for deps, listener in zip(made, listeners, strict=True)
    ]
    return listeners, servers


def _run(batches: list[Batches], quotas: list[Quota]) -> list[asyncio.Task[None]]:
    """Run the batches and leases of all gateways in the background."""
    works = [work for own in batches for work in (own.tail.run(), own.run())]
    works += [quota.run() for quota in quotas]
    return [asyncio.create_task(work) for work in works]


async def _stop(
    core: Platform,
    batches: list[Batches],
    tasks: list[asyncio.Task[None]],
    servers: list[HttpServer],
) -> None:
    for own in batches:
        await own.stop()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for parts in core.gateways:
        parts.submission.close_all("test over")
    for server in servers:
        await server.stop()


def _make_key(core: Platform, *, admin: bool, org: str = "acme") -> str:
    """Make a key that works; return its secret."""
    secret, key = create_key(entropy=SystemEntropy(), clock=SystemClock(), org=org, admin=admin)
    core.control.apply(ControlRecord(key_created=key))
    return secret


def _batches(
    number: int,
    core: Platform,
    log: LineLog,
    grammars: Grammars,
    prompts: Prompts,
    runners: list[bool],
    totals: TotalsView,
) -> Batches:
    """Make the batches of a gateway on the core's log."""
    parts, broker = core.gateways[number], core.broker

    async def open_reader() -> LogReader:
        return broker.reader(f"gateway{number}-batch-reads")

    return Batches(
        BatchWiring(
            clock=SystemClock(),
            entropy=SystemEntropy(),
            log=log,  # type: ignore[arg-type] # keeps lines, and is asked for nothing else
            metrics=Metrics(),
            reader=broker.reader(f"gateway{number}-batches"),
            writer=broker.writer(f"gateway{number}-batches"),
            open_reader=open_reader,
            items=Items(
                clock=SystemClock(),
                entropy=SystemEntropy(),
                keyed=parts.keyed,
                prompts=prompts,
                grammars=grammars,
                locator_key=_LOCATOR_KEY,
                model=MODEL,
                log=log,  # type: ignore[arg-type] # as above
                require_month=lambda org: require_month(
                    core.control.limits.get(org), totals, SystemClock().now_ms()
                ),
            ),
            pool=POOL,
            runs_here=lambda _: runners[number],
        )
    )


def _deps(
    parts: Parts,
    core: Platform,
    log: LineLog,
    grammars: Grammars,
    prompts: Prompts,
    unready: list[str],
    batches: Batches,
    totals: TotalsView,
) -> Deps:
    metrics, number = Metrics(), core.gateways.index(parts)
    return Deps(
        clock=SystemClock(),
        entropy=SystemEntropy(),
        log=log,  # type: ignore[arg-type] # keeps lines, and is asked for nothing else
        metrics=metrics,
        control=core.control,
        submission=parts.submission,
        keyed=parts.keyed,
        tails=parts.tails,
        closer=parts.closer,
        orphans=parts.orphans,
        prompts=prompts,
        grammars=grammars,
        totals=totals,
        quota=Quota(
            clock=SystemClock(),
            reader=core.broker.reader(f"gateway-{number}-grants"),
            writer=core.broker.writer(f"gateway-{number}-demands"),
            gateway=f"gateway-{number}/1",
            metrics=metrics,
            live_gateways=lambda: len(core.gateways),
        ),
        bodies=BodyReader(),
        batches=batches,
        model=parts.submission.model,
        card=_CARD,
        locator_key=_LOCATOR_KEY,
        unready=lambda: unready[0] if unready else None,
    )
