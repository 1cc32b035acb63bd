"""`millstream bench parse`: what reading a request costs, and whether a large one holds up others.

Parsing is measured alone (`python -m gateway.bench`). The stall is measured on the whole platform:
one client asks small questions without a pause while another sends prompts of a megabyte, one
after the other, and the longest answer of the first counts.
"""

import asyncio
import shutil
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from infra.bench.children import start_module
from infra.bench.measure import Measure, measure
from infra.bench.plan import ParseAnswer
from infra.bench.platform import RunningPlatform, clean_environ, running_platform
from infra.bench.statistics import median
from infra.bench.surroundings import Surroundings
from infra.config import Config
from infra.errors import StartupError
from infra.ports import Clock
from schemas import limits

__all__ = ["ParseOptions", "bench_parse", "parse_measures"]

_PARSE_US_MAX = 150
_STALL_MS_MAX = 20
_MEASURED_WITHIN_S = 120.0
_CONTEXT_TOKENS = limits.PROMPT_TOKENS_MAX
_RUNS = 2_048
"""The scripted engine has room for so many ordinary prompts, and so for a large one."""
_MODEL_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"),
    "generation_config.json",
)
_WORDS = "The quick brown fox jumps over the lazy dog and thinks about rivers. "
_SMALL_TEXT = "hi"
_IDLE_S = 1.0
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseOptions:
    """What is run."""

    prompts: int = 10
    """Large prompts of each kind."""
    megabytes: float = 1.0


@dataclass(slots=True, kw_only=True)
class Stalls:
    """Latencies of the small questions, in seconds."""

    idle_s: list[float] = field(default_factory=list)
    beside_s: dict[str, list[float]] = field(default_factory=dict)
    """By kind of large prompt: the longest while each of them was worked on."""


async def bench_parse(
    surroundings: Surroundings, config: Config, options: ParseOptions
) -> list[Measure]:
    """Run the bench; see the module. `config` names the prepared model whose tokenizer is used."""
    folder, environ = surroundings.folder, clean_environ(surroundings.environ)
    surroundings.say("parsing bodies of 3 KB")
    child = await start_module("parse", "gateway.bench", environ, folder)
    try:
        line = await child.read_line(_MEASURED_WITHIN_S)
        parsing = msgspec.json.decode(line, type=ParseAnswer)
    finally:
        await child.stop()
    async with running_platform(
        folder,
        surroundings.environ,
        engine="scripted",
        model=_model_of_large_context(config.model_path, folder / "large-context"),
        context_tokens=_CONTEXT_TOKENS,
        scripted_prefill_tokens_per_s=1e9,
        runs_max=_RUNS,
        worker_inflight_max=_RUNS,
    ) as platform:
        stalls = await asyncio.to_thread(_stalls, platform, surroundings, options)
    surroundings.keep("parse", {"us_per_body": parsing.us_per_body, "stalls": stalls.beside_s})
    return parse_measures(parsing, stalls)


def _model_of_large_context(prepared: Path, folder: Path) -> Path:
    """Return a copy of a model without its card, which bounds the context.

    Raises: StartupError where the model is not prepared.
    """
    if not (prepared / "tokenizer.json").is_file():
        raise StartupError(f"{prepared} has no model yet: start the platform once")
    folder.mkdir()
    for name in _MODEL_FILES:
        shutil.copy(prepared / name, folder)
    return folder


def parse_measures(parsing: ParseAnswer, stalls: Stalls) -> list[Measure]:
    """Return the figures with their bounds."""
    found = [
        measure(
            f"parse and validate, {name}",
            median(list(figures)),
            "us CPU",
            f"<= {_PARSE_US_MAX}",
            f"{parsing.body_bytes[name]} bytes; {min(figures):.0f} to {max(figures):.0f}",
        )
        for name, figures in parsing.us_per_body.items()
    ]
    idle_s = median(stalls.idle_s)
    found.append(measure("a small request alone, median", 1e3 * idle_s, "ms"))
    found.append(
        measure(
            "a small request alone, longest",
            1e3 * max(stalls.idle_s),
            "ms",
            note="what the machine itself adds: stalls of this size mean nothing",
        )
    )
    for kind, longest_s in stalls.beside_s.items():
        found.append(
            measure(
                f"longest stall beside {kind}",
                1e3 * max(0.0, max(longest_s) - idle_s),
                "ms",
                f"<= {_STALL_MS_MAX}",
                f"{len(longest_s)} prompts; median {1e3 * (median(longest_s) - idle_s):.1f} ms",
            )
        )
    return found


def _stalls(platform: RunningPlatform, surroundings: Surroundings, options: ParseOptions) -> Stalls:
    """Send large prompts while small questions are asked without a pause."""
    clock, stalls = surroundings.clock, Stalls()
    size_bytes = int(options.megabytes * limits.MIB)
    one = [{"role": "user", "content": _WORDS * (size_bytes // len(_WORDS))}]
    turn = {"role": "user", "content": "And then? Tell me more."}
    many = [turn] * (size_bytes // (len(msgspec.json.encode(turn)) + 1))
    large: dict[str, tuple[str, dict[str, object]]] = {
        "one text that is counted": ("/v1/messages/count_tokens", {"messages": one}),
        "many turns that are counted": ("/v1/messages/count_tokens", {"messages": many}),
        "one text that is answered": ("/v1/messages", {"messages": one, "max_tokens": 1}),
    }
    small = _request(
        platform,
        "/v1/messages/count_tokens",
        {"messages": [{"role": "user", "content": _SMALL_TEXT}]},
    )
    for _ in range(2):  # the first warms up
        stalls.idle_s = _asked(platform, clock, small, lambda: _sleep(_IDLE_S))
    for kind, (path, body) in large.items():
        surroundings.say(f"{options.megabytes:g} MB as {kind}")
        request = _request(platform, path, body)
        with _Connection(platform) as sender:
            send = partial(sender.ask, request)
            send()  # warms up
            for _ in range(options.prompts):
                beside_s = _asked(platform, clock, small, send)
                stalls.beside_s.setdefault(kind, []).append(max(beside_s))
    return stalls


def _asked(
    platform: RunningPlatform, clock: Clock, small: bytes, work: Callable[[], object]
) -> list[float]:
    """Return how long each small question took while some work was done beside it."""
    latencies_s: list[float] = []
    done = threading.Event()

    def ask_on() -> None:
        with _Connection(platform) as connection:
            while not done.is_set():
                began_s = clock.monotonic_s()
                connection.ask(small)
                latencies_s.append(clock.monotonic_s() - began_s)

    thread = threading.Thread(target=ask_on)
    thread.start()
    try:
        _sleep(0.05)
        work()
    finally:
        done.set()
        thread.join()
    return latencies_s


class _Connection:
    """One kept connection with blocking calls: a client that costs next to nothing itself."""

    def __init__(self, platform: RunningPlatform) -> None:
        self._socket = socket.create_connection((platform.host, platform.port), _TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> "_Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def ask(self, request: bytes) -> bytes:
        """Send a request and return the answer's body. Raises RuntimeError unless it is a 200."""
        self._socket.sendall(request)
        status = self._file.readline()
        length = 0
        while (line := self._file.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        body = self._file.read(length)
        if b" 200 " not in status:
            raise RuntimeError(f"{status.decode()}: {body[:500].decode()}")
        return body


def _request(platform: RunningPlatform, path: str, fields: dict[str, object]) -> bytes:
    body = msgspec.json.encode({"model": platform.model, **fields})
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {platform.host}\r\nx-api-key: {platform.key}\r\n"
        f"anthropic-version: 2023-06-01\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _sleep(seconds: float) -> None:
    threading.Event().wait(seconds)
