"""One org's lease at one gateway, and what headers tell of it."""

from gateway.ask import Ask, LimitName
from gateway.lease import OrgLease
from gateway.limit_headers import Left, duration, headers_of
from schemas import limits
from schemas.operations import LimitsSet
from schemas.quota import KINDS, Kind, OrgLimits, QuotaGranted, limits_of
from schemas.quota_ledger import Ledger
from schemas.requests import Dialect

ONE = Ask(amounts=(1, 0, 0, 0))


def org_limits(**allowed: int | None) -> OrgLimits:
    """Return the limits of an org, its first ones."""
    return limits_of(LimitsSet(org="acme", set_ms=0, **allowed), 1)


class Pair:
    """A gateway's lease and the ledger, which answers at once."""

    def __init__(self, **allowed: int | None) -> None:
        self.lease = OrgLease(org_limits(**allowed), "gateway-0/1")
        self.ledger = Ledger("stream-app/1", 0)

    def renew(self, now_s: float) -> QuotaGranted:
        """Send a demand and take its grant."""
        grant = self.ledger.handle(self.lease.demand(now_s), round(1000 * now_s))
        assert grant is not None
        self.lease.hear(grant, now_s)
        return grant


def test_a_lease_is_spent_within_its_term_and_not_after() -> None:
    """Counted from when it was asked for, less a margin; what is left then counts as spent."""
    pair = Pair(requests_per_minute=80)
    pair.lease.take(ONE, 10.0)
    pair.renew(10.0)
    last_s = 10 + (limits.QUOTA_TERM_MS - limits.QUOTA_MARGIN_MS) / 1000
    assert pair.lease.take(ONE, last_s - 0.01) is None
    assert pair.lease.take(ONE, last_s) is not None
    assert pair.lease.left == [0] * KINDS


def test_what_no_request_asks_for_is_given_back_and_then_nothing_is_sent() -> None:
    """An idle lease is renewed for a while, then returned; the bucket is whole again."""
    pair = Pair(requests_per_minute=80)
    pair.lease.take(ONE, 0.0)
    pair.renew(0.0)
    assert pair.lease.take(ONE, 0.1) is None
    now_s, demands = 0.1, 0
    while not pair.lease.idle:
        now_s += 0.1
        if pair.lease.is_due(now_s):
            grant = pair.renew(now_s)
            demands += 1
        assert demands < 10
    assert limits.QUOTA_KEEP_MS <= 1000 * now_s <= limits.QUOTA_KEEP_MS + 2_000
    assert (grant.held, grant.slots) == ((0,) * KINDS, 0)
    assert pair.lease.remaining(Kind.REQUESTS, now_s)[0] == 80
    assert not pair.lease.is_due(now_s + 100)


def test_a_short_grant_elsewhere_makes_a_gateway_give_back_what_it_does_not_need() -> None:
    """Another gateway's request does not wait for what lies idle here."""
    pair, other = Pair(requests_per_minute=8), OrgLease(org_limits(requests_per_minute=8), "b")
    pair.lease.need[Kind.REQUESTS] = 8
    pair.renew(0.0)
    pair.lease.need[Kind.REQUESTS] = 0
    assert pair.lease.left[Kind.REQUESTS] == 8
    assert other.take(ONE, 0.1) is not None
    other.need[Kind.REQUESTS] = 1
    short = pair.ledger.handle(other.demand(0.1), 100)
    assert short is not None and short.short
    for lease in (pair.lease, other):
        lease.hear(short, 0.11)
    assert other.may_wait(ONE, 0.12) and pair.lease.is_due(0.12)
    other.hear(pair.renew(0.12), 0.13)
    assert other.is_due(0.14)
    grant = pair.ledger.handle(other.demand(0.14), 140)
    assert grant is not None
    other.hear(grant, 0.15)
    assert other.take(ONE, 0.15) is None


def test_what_others_hold_is_asked_for_once_and_then_not_for_a_while() -> None:
    """A request waits a moment for idle units elsewhere; in vain, the next ones hear no at once."""
    pair, other = Pair(requests_per_minute=8), OrgLease(org_limits(requests_per_minute=8), "b")
    other.take(ONE, 0.0)
    pair.lease.need[Kind.REQUESTS] = 8
    pair.renew(0.0)
    known = pair.ledger.handle(other.demand(0.01), 10)
    assert known is not None and known.held_by_others[Kind.REQUESTS] == 8
    other.hear(known, 0.02)
    assert other.take(ONE, 0.1) is not None and other.may_wait(ONE, 0.1)
    other.need[Kind.REQUESTS] = 1
    assert other.is_due(0.1)
    short = pair.ledger.handle(other.demand(0.1), 100)
    assert short is not None and short.short
    other.hear(short, 0.11)
    assert other.may_wait(ONE, 0.3) and not other.is_due(0.3)
    assert not other.may_wait(ONE, 0.5)


def test_limits_change_while_a_lease_lives() -> None:
    """A kind that had no limit begins full; one that loses its limit owes and holds nothing."""
    pair = Pair(requests_per_minute=80)
    pair.lease.take(ONE, 0.0)
    pair.renew(0.0)
    fact = LimitsSet(org="acme", set_ms=0, output_tokens_per_minute=600)
    pair.lease.set_limits(limits_of(fact, 2))
    grant = pair.renew(0.1)
    assert pair.lease.left[Kind.REQUESTS] == 0 and pair.lease.take(ONE, 0.1) is None
    assert grant.levels[Kind.OUTPUT] // 60_000 + grant.held[Kind.OUTPUT] == 600


def test_a_request_larger_than_the_bucket_is_told_that_it_never_passes() -> None:
    """It neither waits nor gets a time to come again."""
    lease = OrgLease(org_limits(input_tokens_per_minute=100), "a")
    lack = lease.take(Ask(amounts=(0, 0, 101, 0)), 0.0)
    assert lack is not None
    assert (lack.limit, lack.value, lack.retry_s) == (LimitName.INPUT, 100, None)


def test_refunds_and_overdrafts_reach_the_bucket_once() -> None:
    """Told again where the grant was lost, counted once all the same."""
    pair = Pair(input_tokens_per_minute=800, output_tokens_per_minute=600)
    pair.lease.take(Ask(amounts=(0, 0, 100, 0)), 0.0)
    pair.lease.need[Kind.INPUT] = 100
    pair.renew(0.0)
    pair.lease.need[Kind.INPUT] = 0
    assert pair.lease.take(Ask(amounts=(0, 0, 100, 0)), 0.0) is None
    pair.lease.charge(Kind.OUTPUT, 700)
    pair.lease.give(Kind.INPUT, 90)
    lost = pair.ledger.handle(pair.lease.demand(0.0), 0)
    assert lost is not None
    assert not pair.lease.tire(1.0, 1)
    grant = pair.renew(0.0)
    held = [grant.levels[kind] // 60_000 + grant.held[kind] for kind in range(KINDS)]
    assert held[Kind.INPUT] == 790 and held[Kind.OUTPUT] == -100


def test_a_lease_is_spent_before_the_own_share_is() -> None:
    """Silence of the service changes nothing while a lease holds what is asked for."""
    pair = Pair(requests_per_minute=80)
    lease = pair.lease
    lease.take(ONE, 0.0)
    pair.renew(0.0)
    lease.demand(1.0)
    assert not lease.tire(2.5, 2) and not lease.away
    assert lease.take(ONE, 2.5) is None
    lease.demand(2.6)
    assert lease.tire(4.1, 2) and lease.away
    passed = [lease.take(ONE, 4.1) for _ in range(50)].count(None)
    assert 33 <= passed <= 40, "half of what the bucket had, as far as is known"
    fresh = OrgLease(org_limits(requests_per_minute=80, concurrency=3), "b")
    fresh.demand(0.0)
    assert fresh.tire(0.6, 2, in_vain=True)
    assert [fresh.take(Ask(slot=True), 0.6) for _ in range(3)].count(None) == 2


def test_headers_tell_the_tightest_tokens_and_round_as_each_dialect_does() -> None:
    """Anthropic's: times and thousands; OpenAI's: durations and units."""
    left = [
        Left(name="requests", limit=60, remaining=59, full_in_s=1.0),
        Left(name="input-tokens", limit=90_000, remaining=80_499, full_in_s=6.3),
        Left(name="output-tokens", limit=10_000, remaining=9_600, full_in_s=2.4),
    ]
    anthropic = dict(headers_of(Dialect.ANTHROPIC, 1_755_779_999_000, left))
    assert anthropic[b"anthropic-ratelimit-requests-reset"] == b"2025-08-21T12:40:00Z"
    assert anthropic[b"anthropic-ratelimit-input-tokens-remaining"] == b"80000"
    assert anthropic[b"anthropic-ratelimit-output-tokens-remaining"] == b"10000"
    assert anthropic[b"anthropic-ratelimit-tokens-limit"] == b"90000"
    openai = dict(headers_of(Dialect.OPENAI, 0, left))
    assert openai[b"x-ratelimit-remaining-tokens"] == b"80499"
    assert openai[b"x-ratelimit-reset-tokens"] == b"7s"
    assert headers_of(Dialect.RESPONSES, 0, []) == []
    assert [duration(s) for s in (0, 0.0115, 1, 59.2, 360, 7260)] == [
        *("0ms", "12ms", "1s", "1m0s", "6m0s", "2h1m0s")
    ]
