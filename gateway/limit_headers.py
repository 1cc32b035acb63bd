"""What is left of an org's limits, in the headers of each dialect. Pure.

Source: docs.anthropic.com, "Rate limits: response headers"; platform.openai.com, "Rate limits in
headers".
"""

import math
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from schemas.requests import Dialect

__all__ = ["Left", "duration", "headers_of"]

_TOKENS_ROUNDED_TO = 1_000


class Left(Struct, frozen=True, kw_only=True):
    """One limit as it stands."""

    name: str
    """requests | input-tokens | output-tokens"""
    limit: int
    remaining: int
    full_in_s: float
    """When it is whole again, if nobody spends."""


def headers_of(dialect: Dialect, now_ms: int, left: list[Left]) -> list[tuple[bytes, bytes]]:
    """Return the headers that tell of these limits; none for limits that there are not."""
    requests = [each for each in left if each.name == "requests"]
    tokens = [each for each in left if each.name != "requests"]
    tightest = min(tokens, key=lambda each: each.remaining / each.limit, default=None)
    pairs: list[tuple[str, str]] = []
    if dialect is Dialect.ANTHROPIC:
        named = [(each.name, each) for each in left]
        if tightest is not None:
            named.append(("tokens", tightest))
        for name, each in named:
            pairs += _anthropic(name, each, now_ms)
    else:
        if requests:
            pairs += _openai("requests", requests[0])
        if tightest is not None:
            pairs += _openai("tokens", tightest)
    return [(name.encode(), value.encode()) for name, value in pairs]


def _anthropic(name: str, left: Left, now_ms: int) -> list[tuple[str, str]]:
    remaining = left.remaining
    if name != "requests":
        half = _TOKENS_ROUNDED_TO // 2
        rounded = (remaining + half) // _TOKENS_ROUNDED_TO * _TOKENS_ROUNDED_TO
        remaining = min(left.limit, rounded)
    full_s = math.ceil(now_ms / 1000 + left.full_in_s)
    reset = (datetime.fromtimestamp(0, UTC) + timedelta(seconds=full_s)).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )
    prefix = f"anthropic-ratelimit-{name}"
    return [
        (f"{prefix}-limit", str(left.limit)),
        (f"{prefix}-remaining", str(remaining)),
        (f"{prefix}-reset", reset),
    ]


def _openai(name: str, left: Left) -> list[tuple[str, str]]:
    return [
        (f"x-ratelimit-limit-{name}", str(left.limit)),
        (f"x-ratelimit-remaining-{name}", str(left.remaining)),
        (f"x-ratelimit-reset-{name}", duration(left.full_in_s)),
    ]


def duration(seconds: float) -> str:
    """Return a duration as OpenAI writes it: `12ms`, `1s`, `6m0s`, `1h0m0s`; rounded up."""
    whole_ms = math.ceil(max(0.0, seconds) * 1000)
    if whole_ms < 1000:
        return f"{whole_ms}ms"
    whole_s = -(-whole_ms // 1000)
    if whole_s < 60:
        return f"{whole_s}s"
    if whole_s < 3600:
        return f"{whole_s // 60}m{whole_s % 60}s"
    return f"{whole_s // 3600}h{whole_s % 3600 // 60}m{whole_s % 60}s"
