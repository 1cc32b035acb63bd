"""Usage: a pure function of an ended fold (design rule 6.4), and the events that carry it.

Whoever emits an id's usage, however often, emits the same bytes; consumers deduplicate by request
id.
"""

from datetime import UTC, datetime
from functools import lru_cache

from msgspec import Struct

from schemas.fold import ReplyFold
from schemas.replies import StageTimes

_DAY_MS = 24 * 3_600_000


class UsageRecorded(Struct, frozen=True, kw_only=True):
    """What one ended reply used. Keyed by org on `usage.v1`, deduplicated by request id."""

    request_id: str
    org: str
    workspace: str
    key_id: str
    user: str | None
    alias: str
    model: str
    model_version: str
    pool: str
    region: str | None
    rollout_arm: str | None
    price_book_version: str | None
    dialect: str
    accepted_at_ms: int
    """Append time of the first start (or of the close, where there was none)."""
    first_token_at_ms: int | None
    ended_at_ms: int
    input_tokens: int
    """Whole prompt, cached part included; 0 where nothing was generated, since nothing is
    billed."""
    cached_tokens: int
    """The part of `input_tokens` that was found in the prefix cache, as clients were shown it."""
    output_tokens: int
    cost_nano: int
    """Nano-units of money; 0 until a price book rates it."""
    stop_reason: str | None
    close_reason: str | None
    stages: StageTimes | None


class UsageTotals(Struct, frozen=True, kw_only=True):
    """Running totals of one org, published by the stream-app to `usage-totals.v1`."""

    org: str
    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost_nano: int
    partition: int
    next_offset: int
    """Every usage record of `partition` below this is in the totals."""
    month: int = 0
    """The newest calendar month (UTC) that a request of the totals was accepted in: 202612; 0 in
    records of before months were kept."""
    month_input_tokens: int = 0
    """Sums of that month alone."""
    month_output_tokens: int = 0


def month_of(time_ms: int) -> int:
    """Return the calendar month (UTC) of a time: 202612."""
    return _month_of_day(time_ms // _DAY_MS)


@lru_cache(maxsize=64)
def _month_of_day(day: int) -> int:
    moment = datetime.fromtimestamp(day * _DAY_MS // 1000, UTC)
    return 100 * moment.year + moment.month


def usage_of(request_id: str, fold: ReplyFold) -> UsageRecorded:
    """Return the usage of an ended reply; a fold that has not ended is our own mistake."""
    end = fold.end
    assert end is not None, "usage is a function of the fold at its end"
    origin = fold.origin
    assert origin is not None, "an ended fold has a start or a close"
    header, accepted = origin.header, fold.accepted_count
    # Where no token was asked for, the one that put the prompt into the cache costs nothing.
    output_tokens = 0 if header.max_tokens == 0 else accepted
    return UsageRecorded(
        request_id=request_id,
        org=origin.identity.org,
        workspace=origin.identity.workspace,
        key_id=origin.identity.key_id,
        user=origin.identity.user,
        alias=origin.placement.alias,
        model=origin.placement.model,
        model_version=origin.placement.model_version,
        pool=origin.placement.pool,
        region=origin.placement.region,
        rollout_arm=origin.placement.rollout_arm,
        price_book_version=origin.placement.price_book_version,
        dialect=header.dialect.value,
        accepted_at_ms=origin.append_time_ms,
        first_token_at_ms=fold.first_token_at_ms,
        ended_at_ms=end.append_time_ms,
        input_tokens=header.prompt_tokens if accepted else 0,
        cached_tokens=fold.cached_tokens or 0,
        output_tokens=output_tokens,
        cost_nano=0,
        stop_reason=end.terminal.stops[0].reason.value if end.terminal else None,
        close_reason=end.close_reason.value if end.close_reason else None,
        stages=end.terminal.stages if end.terminal else None,
    )
