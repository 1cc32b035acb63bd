"""Log lines of a process: one line per event, JSON off a terminal.

Owns their form and where they go (standard error). Files and rotation belong to the supervisor.
Called once by each composition root; everyone else writes `structlog.get_logger()`.
"""

import json
import logging
import logging.config
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, TextIO

import msgspec
import structlog

from infra.config import Config

__all__ = ["configure"]

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

# Libraries that repeat an error line ten times a second while a broker is away; `infra/kafka/` says
# once what changed.
_SILENT = ("aiokafka",)

# Libraries whose info lines repeat what our own lines say, or that come per request.
_QUIET = ("faust", "mode", "httpx", "httpcore", "clickhouse_connect", "uvicorn.access")


_ENCODER = msgspec.json.Encoder(enc_hook=repr)


def configure(config: Config, stream: TextIO | None = None) -> None:
    """Send our log lines and the libraries' to `stream` (standard error) in one form."""
    stream = stream or sys.stderr
    as_json = config.log_format == "json" or (config.log_format == "auto" and not stream.isatty())
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _process_name(config.process),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderers: list[structlog.types.Processor] = (
        [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_to_json),
        ]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    )
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[config.log_level]),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,  # tests configure more than once
    )
    _route_standard_logging(shared, renderers, stream, _LEVELS[config.log_level])


def _route_standard_logging(
    shared: list[structlog.types.Processor],
    renderers: list[structlog.types.Processor],
    stream: TextIO,
    level: int,
) -> None:
    """Give libraries' lines the same form, and keep the talkative ones to warnings."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.captureWarnings(True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    for name in _SILENT:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _to_json(event: object, default: Callable[[Any], Any]) -> str:
    """Return one line; slower where a text is no Unicode or a number does not fit 64 bits."""
    try:
        return _ENCODER.encode(event).decode()
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        return json.dumps(event, default=default)


def _process_name(process: str) -> structlog.types.Processor:
    def add(
        _logger: Any, _method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event.setdefault("process", process)
        return event

    return add
