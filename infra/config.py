"""The one frozen configuration of a process, built from a Mapping and checked as a whole.

Owns every setting's name, default, cast and bound: the setting `data_dir` is the variable
`MILLSTREAM_DATA_DIR`. Reads no environment itself (composition roots pass it in) and makes no
files. Called by each `__main__.py` and by the commands.
"""

import dataclasses
import difflib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from infra.errors import ConfigError
from infra.reply_forms import AUTO, REASONING_PARSERS, TOOL_PARSERS
from schemas import limits
from schemas.topics import POOL_PATTERN

__all__ = ["DEFAULT_MODEL", "PREFIX", "Config", "load", "variables"]

PREFIX = "MILLSTREAM_"
DEFAULT_MODEL = "smollm2-135m-instruct"
DEFAULT_CACHE = Path(sys.prefix) / "millstream"

Cast = Callable[[str], object]

_ORIGIN = re.compile(r"\*|https?://[a-z0-9.\-\[\]:]+")


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("some text")
    return value.strip()


def _whole(low: int, high: int) -> Cast:
    def convert(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return number

    return convert


def _real(low: float, high: float) -> Cast:
    def convert(value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise ValueError(f"a number from {low:g} to {high:g}")
        return number

    return convert


def _one_of(*choices: str) -> Cast:
    def convert(value: str) -> str:
        if value not in choices:
            raise ValueError("one of " + ", ".join(choices))
        return value

    return convert


def _brokers(value: str) -> int:
    if value not in ("1", "3", "5"):
        # An even number has no more lives than the odd one below it.
        raise ValueError("1, 3 or 5: more than half of them must live for the log to be written")
    return int(value)


def _path(value: str) -> Path:
    return Path(_text(value)).expanduser().absolute()


def _servers(value: str) -> str:
    for server in value.split(","):
        host, colon, port = server.rpartition(":")
        if not (colon and host and port.isdigit() and 0 < int(port) < 65_536):
            raise ValueError("HOST:PORT, or several joined by commas")
    return value


def _url(value: str) -> str:
    try:
        parts = urlsplit(value)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise ValueError("http://HOST:PORT or https://HOST:PORT")
    return value.rstrip("/")


def _origins(value: str) -> str:
    for origin in value.split(",") if value.strip() else ():
        if not _ORIGIN.fullmatch(origin.strip()):
            raise ValueError("https://HOST or http://HOST:PORT, several joined by commas, or *")
    return value.strip()


def _pool(value: str) -> str:
    if not POOL_PATTERN.fullmatch(value):
        raise ValueError(f"1 to 64 of a-z, 0-9 and -  ({POOL_PATTERN.pattern})")
    return value


def _optional(convert: Cast) -> Cast:
    return lambda value: convert(value) if value else None


def _secret(value: str) -> bytes:
    try:
        raw = bytes.fromhex(value)
    except ValueError:
        raw = b""
    if len(raw) < 16:
        raise ValueError("at least 16 bytes in hexadecimal")
    return raw


def _setting(convert: Cast, default: Any, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"cast": convert})


_PORT = _whole(0, 65_535)
_MILLISECONDS = _whole(1, 24 * 3_600_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every setting of one process; secrets are left out of its text form."""

    process: str = _setting(_text, "millstream")
    """Name in the fleet, such as `gateway-0`."""
    data_dir: Path = _setting(_path, Path(".millstream").absolute())
    cache_dir: Path = _setting(_path, DEFAULT_CACHE)
    """Model and Kafka jars, shared by all data folders."""
    kafka: str = _setting(_servers, "127.0.0.1:9092")
    clickhouse_url: str = _setting(_url, "http://127.0.0.1:8123")
    clickhouse_user: str = _setting(_text, "millstream")
    clickhouse_password: str = _setting(str, "", secret=True)
    clickhouse_database: str = _setting(_text, "millstream")
    pool: str = _setting(_pool, DEFAULT_MODEL)
    model: str = _setting(_text, DEFAULT_MODEL)
    """Model id that users name in their requests."""
    model_path: Path = _setting(_path, DEFAULT_CACHE / "models" / DEFAULT_MODEL)
    """Folder with tokenizer.json, chat_template.jinja, config.json, generation_config.json and, for
    vllm, weights."""
    model_version: str = _setting(_text, f"{DEFAULT_MODEL}-1")
    context_tokens: int = _setting(_whole(16, limits.PROMPT_TOKENS_MAX), 4_096)
    engine: Literal["vllm", "scripted"] = _setting(_one_of("vllm", "scripted"), "vllm")
    dtype: Literal["float32", "bfloat16"] = _setting(_one_of("float32", "bfloat16"), "float32")
    """vLLM's. bfloat16 is faster; float32 gives the same reply whether or not its prompt was
    cached."""
    tool_parser: str = _setting(_one_of(*TOOL_PARSERS), AUTO)
    """Form in which the model writes tool calls; auto = as its chat template tells."""
    reasoning_parser: str = _setting(_one_of(*REASONING_PARSERS), AUTO)
    """Form in which the model thinks aloud, or none; auto = as its chat template tells."""
    runs_max: int = _setting(_whole(1, 65_536), 64)
    """Replies that one engine makes at the same time."""
    host: str = _setting(_text, "127.0.0.1")
    port: int = _setting(_PORT, 8_080)
    listen_fd: int | None = _setting(_optional(_whole(0, 1 << 20)), None)
    """Inherited listening socket of the public address; None = bind none."""
    health_port: int = _setting(_PORT, 0)
    """Loopback port of /health, /ready and /metrics; 0 = none."""
    locator_key: bytes = _setting(_secret, b"", secret=True)
    session_timeout_ms: int = _setting(_MILLISECONDS, 6_000)
    heartbeat_ms: int = _setting(_MILLISECONDS, 500)
    worker_heartbeat_ms: int = _setting(_MILLISECONDS, 100)
    """How often a worker asks whether its group changed: a dead worker's lanes wait for that."""
    rebalance_timeout_ms: int = _setting(_MILLISECONDS, 10_000)
    worker_drain_ms: int = _setting(_MILLISECONDS, 20_000)
    """How long a worker that is told to stop goes on with its replies; others take the rest."""
    scripted_prefill_tokens_per_s: float = _setting(_real(1, 1e9), 20_000.0)
    scripted_step_ms: float = _setting(_real(0, 60_000), 5.0)
    cors_origins: str = _setting(_origins, "")
    """Web origins whose pages may call the API, joined by commas; `*` = all, empty = none."""
    scripted_crash_token_id: int | None = _setting(_optional(_whole(0, 1 << 31)), None)
    """The scripted engine ends its process over a prompt with this token; empty = over none."""
    keepalive_ms: int = _setting(_MILLISECONDS, limits.KEEPALIVE_MS)
    resumable_grace_ms: int = _setting(_MILLISECONDS, limits.RESUMABLE_GRACE_MS)
    deadline_ms: int = _setting(_MILLISECONDS, limits.DEADLINE_MS)
    gateway_inflight_max: int = _setting(_whole(1, 65_536), limits.GATEWAY_INFLIGHT_MAX)
    """Requests that one gateway has open; more get 529."""
    worker_inflight_max: int = _setting(_whole(1, 65_536), limits.WORKER_INFLIGHT_MAX)
    """Requests that one worker takes from its lanes; more wait in the log."""
    log_format: Literal["auto", "json", "console"] = _setting(
        _one_of("auto", "json", "console"), "auto"
    )
    """auto = console on a terminal, JSON elsewhere."""
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        _one_of("debug", "info", "warning", "error"), "info"
    )
    # --- settings that only the supervisor and the commands look at
    workers: int = _setting(_whole(1, limits.LANES), 1)
    gateways: int = _setting(_whole(1, 64), 1)
    brokers: int = _setting(_brokers, 1)
    """Embedded Kafka brokers; fixed by a data folder's first start."""
    kafka_port: int = _setting(_PORT, 9_092)
    clickhouse_port: int = _setting(_PORT, 8_123)
    url: str = _setting(lambda value: _url(value) if value else "", "")
    """Base URL that commands call; empty = the one of the platform running on `data_dir`."""
    key: str = _setting(str, "", secret=True)
    """API key that commands use; empty = the development key of `data_dir`."""


def variables(config: Config) -> dict[str, str]:
    """Return the MILLSTREAM_* variables from which `load` builds this very `config`."""
    result = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        # Paths always: their defaults hang on the working folder and on the environment's.
        if value != item.default or isinstance(value, Path):
            text = value.hex() if isinstance(value, bytes) else str(value)
            result[PREFIX + item.name.upper()] = "" if value is None else text
    return result


def load(environ: Mapping[str, str]) -> Config:
    """Build the configuration of a process from its environment.

    Raises: ConfigError naming every unknown MILLSTREAM_* variable and every bad value, with what
    was wanted.
    """
    fields = {PREFIX + item.name.upper(): item for item in dataclasses.fields(Config)}
    values, problems = {}, []
    for name in sorted(name for name in environ if name.startswith(PREFIX)):
        item = fields.get(name)
        if item is None:
            problems.append(f"{name}: no such setting{_closest(name, fields)}")
            continue
        try:
            values[item.name] = item.metadata["cast"](environ[name])
        except ValueError as error:
            shown = f"{environ[name]!r}" if item.repr else "a secret"
            problems.append(f"{name}: {shown} given, expected {error}")
    if not problems:
        config = Config(**values)
        problems = _relations(config)
    if problems:
        raise ConfigError("settings are wrong:\n  " + "\n  ".join(problems))
    return config


def _relations(config: Config) -> list[str]:
    """Return what does not fit together although each value alone is good."""
    problems = [
        f"{PREFIX}{name.upper()}: {given} given, expected at most a third of "
        f"{PREFIX}SESSION_TIMEOUT_MS ({config.session_timeout_ms}): one late heartbeat "
        "must not end a session"
        for name in ("heartbeat_ms", "worker_heartbeat_ms")
        if (given := getattr(config, name)) * 3 > config.session_timeout_ms
    ]
    if config.runs_max > config.worker_inflight_max:
        problems.append(
            f"{PREFIX}RUNS_MAX: {config.runs_max} given, expected at most "
            f"{PREFIX}WORKER_INFLIGHT_MAX ({config.worker_inflight_max}): an engine makes only "
            "replies that its worker has taken"
        )
    return problems


def _closest(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""
