"""What is left of an org's limits, in the headers of each dialect. Pure.

Source: docs.anthropic.com, "Rate limits: response headers"; platform.openai.com, "Rate limits in
headers".
"""

import math
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from msgspec import Struct

from schemas.requests import Dialect

__all__ = ["LIMIT_HEADERS", "Left", "duration", "headers_of"]

_TOKENS_ROUNDED_TO = 1_000


LIMIT_HEADERS: Final = tuple(
    form.format(kind, what)
    for form, kinds in (
        ("anthropic-ratelimit-{0}-{1}", ("requests", "input-tokens", "output-tokens", "tokens")),
        ("x-ratelimit-{1}-{0}", ("requests", "tokens")),
    )
    for kind in kinds
    for what in ("limit", "remaining", "reset")
)
"""All names that there are."""


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
    tightest: Left | None = None
    for each in left:
        if each.name == "requests":
            continue
        if tightest is None or each.remaining * tightest.limit < tightest.remaining * each.limit:
            tightest = each
    pairs: list[tuple[bytes, bytes]] = []
    if dialect is Dialect.ANTHROPIC:
        for each in left:
            pairs += _anthropic(each.name, each, now_ms)
        if tightest is not None:
            pairs += _anthropic("tokens", tightest, now_ms)
        return pairs
    for each in left:
        if each.name == "requests":
            pairs += _openai("requests", each)
    return pairs if tightest is None else pairs + _openai("tokens", tightest)


def _anthropic(name: str, left: Left, now_ms: int) -> list[tuple[bytes, bytes]]:
    remaining = left.remaining
    if name != "requests":
        half = _TOKENS_ROUNDED_TO // 2
        rounded = (remaining + half) // _TOKENS_ROUNDED_TO * _TOKENS_ROUNDED_TO
        remaining = min(left.limit, rounded)
    limit, what_remains, reset = _names("anthropic-ratelimit-{0}-{1}", name)
    full_s = math.ceil(now_ms / 1000 + left.full_in_s)
    return [
        (limit, b"%d" % left.limit),
        (what_remains, b"%d" % remaining),
        (reset, _moment(full_s)),
    ]


def _openai(name: str, left: Left) -> list[tuple[bytes, bytes]]:
    limit, what_remains, reset = _names("x-ratelimit-{1}-{0}", name)
    return [
        (limit, b"%d" % left.limit),
        (what_remains, b"%d" % left.remaining),
        (reset, duration(left.full_in_s).encode()),
    ]


@lru_cache(maxsize=16)
def _names(form: str, name: str) -> tuple[bytes, bytes, bytes]:
    limit, remaining, reset = (
        form.format(name, what).encode() for what in ("limit", "remaining", "reset")
    )
    return limit, remaining, reset


@lru_cache(maxsize=256)
def _moment(time_s: int) -> bytes:
    """Return a time as RFC 3339 has it; many answers of a minute tell the same few."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ").encode()


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
