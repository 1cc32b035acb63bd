"""A real HTTP server over the gateway on the memory log, for the gateway's HTTP tests.

The tokenizer has one token per byte, so that a script says text by its bytes.
"""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from gateway.app import build_app
from gateway.bodies import BodyReader
from gateway.deps import Deps
from gateway.prompts import Prompts
from gateway.server import HttpServer, listen
from gateway.submission import ServedModel
from gateway.totals import TotalsView
from infra.chat_template import ChatTemplate
from infra.keys import create_key
from infra.metrics import Metrics
from infra.system import SystemClock, SystemEntropy
from infra.tokenizer import Tokenizer
from schemas import limits
from schemas.dialects.models import ModelCard
from schemas.operations import ControlRecord
from tests.gateway_platform import POOL, Platform, Script, answer_hello, platform

MODEL = "m"
CONTEXT_TOKENS = 4_096
_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


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
    key: str
    admin_key: str
    log: LineLog
    unready: list[str] = field(default_factory=list)
    """Put a reason here and the gateway is not ready."""


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
) -> AsyncIterator[Served]:
    """Serve a gateway on a free port until the block ends."""
    clock, entropy = SystemClock(), SystemEntropy()
    async with platform(
        script,
        context_tokens=CONTEXT_TOKENS,
        admit_within_ms=admit_within_ms,
        deadline_ms=deadline_ms,
    ) as core:
        secrets = []
        for admin in (False, True):
            secret, key = create_key(entropy=entropy, clock=clock, org="acme", admin=admin)
            core.control.apply(ControlRecord(key_created=key))
            secrets.append(secret)
        prompts = Prompts(load_tokenizer, CONTEXT_TOKENS)
        await prompts.load()
        log, unready = LineLog(), list[str]()
        deps = Deps(
            clock=clock,
            entropy=entropy,
            log=log,  # type: ignore[arg-type] # keeps lines, and is asked for nothing else
            metrics=Metrics(),
            control=core.control,
            submission=core.gateways[0].submission,
            keyed=core.gateways[0].keyed,
            tails=core.gateways[0].tails,
            closer=core.gateways[0].closer,
            orphans=core.gateways[0].orphans,
            prompts=prompts,
            totals=TotalsView(),
            bodies=BodyReader(body_bytes_max),
            model=ServedModel(
                alias=MODEL, model_version="m-1", pool=POOL, context_tokens=CONTEXT_TOKENS
            ),
            card=ModelCard(
                id=MODEL, display_name="M", created_ms=0, max_input_tokens=4_095, max_tokens=4_095
            ),
            locator_key=b"k" * 32,
            unready=lambda: unready[0] if unready else None,
            keepalive_ms=keepalive_ms,
            slow_client_ms=slow_client_ms,
        )
        listener = listen("127.0.0.1", 0)
        if send_buffer_bytes is not None:  # accepted sockets inherit it
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        server = HttpServer(build_app(deps), [listener])
        await server.start()
        try:
            yield Served(
                platform=core,
                deps=deps,
                url=f"http://127.0.0.1:{listener.getsockname()[1]}",
                key=secrets[0],
                admin_key=secrets[1],
                log=log,
                unready=unready,
            )
        finally:
            core.submission.close_all("test over")
            await server.stop()
