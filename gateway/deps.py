"""What the HTTP handlers need, in one frozen value made by the composition root or a test."""

from collections.abc import Callable
from dataclasses import dataclass, field

from structlog.typing import FilteringBoundLogger

from gateway.batches.service import Batches
from gateway.bodies import BodyReader
from gateway.closing import Closer
from gateway.cross_origin import CrossOrigin
from gateway.grammars import Grammars
from gateway.keyed import Keyed
from gateway.orphans import Orphans
from gateway.prompts import Prompts
from gateway.quota import Quota
from gateway.reply_tails import ReplyTails
from gateway.submission import ServedModel, Submission
from gateway.totals import TotalsView
from infra.control import ControlView
from infra.metrics import Metrics
from infra.ports import Clock, Entropy
from schemas import limits
from schemas.dialects.models import ModelCard

__all__ = ["Deps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """Everything a handler touches."""

    clock: Clock
    entropy: Entropy
    log: FilteringBoundLogger
    metrics: Metrics
    control: ControlView
    submission: Submission
    keyed: Keyed
    tails: ReplyTails
    closer: Closer
    orphans: Orphans
    prompts: Prompts
    grammars: Grammars
    totals: TotalsView
    quota: Quota
    bodies: BodyReader
    batches: Batches
    model: ServedModel
    card: ModelCard
    locator_key: bytes
    unready: Callable[[], str | None]
    """Returns why calls cannot be served yet, or None."""
    keepalive_ms: int = limits.KEEPALIVE_MS
    slow_client_ms: int = limits.SLOW_CLIENT_MS
    cross_origin: CrossOrigin = field(default_factory=CrossOrigin)
