"""Idempotency keys: reading one, what it covers, and which claim wins by the order of the log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.idempotency import ClaimBook, fingerprint_of, is_void, read_key, scope_of
from schemas import limits
from schemas.dialects.canonical import InvalidRequest
from schemas.fold import ReplyFold
from schemas.idempotency import (
    IdempotencyRecord,
    KeyClaimed,
    KeyDone,
    KeyReleased,
    ReplyResumed,
    record_of,
)
from schemas.ids import Locator
from schemas.replies import Closed, CloseReason, Delta, Start
from tests.builders import closed, delta, start

DAY_MS = limits.IDEMPOTENCY_MS


def claim(nonce: str, scope: str = "s") -> IdempotencyRecord:
    """Return a claim that is told by its nonce."""
    return record_of(
        KeyClaimed(
            scope=scope,
            nonce=nonce,
            fingerprint="f",
            request_id=f"request-{nonce}",
            locator=Locator(cell=0, incarnation=7, partition=0, floor=0),
            lane=0,
            seed=1,
            created_ms=0,
            admit_by_ms=1,
            deadline_ms=2,
            gateway="gateway-0/1",
            key_id="key_1",
            model_version="m-1",
        )
    )


def released(nonce: str, scope: str = "s") -> IdempotencyRecord:
    """Return a release."""
    return record_of(KeyReleased(scope=scope, nonce=nonce))


def done(nonce: str, end_offset: int = 5) -> IdempotencyRecord:
    """Return a note of an end."""
    return record_of(KeyDone(scope="s", nonce=nonce, end_offset=end_offset))


def holder(book: ClaimBook, scope: str = "s") -> str | None:
    """Return the nonce that holds a scope."""
    held = book.held(scope)
    return held.claim.nonce if held else None


def test_the_first_claim_of_a_scope_wins_and_others_lose() -> None:
    """Order alone decides, and scopes do not disturb each other."""
    book = ClaimBook()
    for record in (claim("a"), claim("b"), claim("c", "other")):
        book.apply(record, 1)
    assert (holder(book), holder(book, "other")) == ("a", "c")
    assert [book.verdict(nonce) for nonce in "abcd"] == [True, False, True, None]


def test_a_claim_is_judged_where_it_lands_first() -> None:
    """A doubled or late landing of a winner, a loser or a released claim changes nothing."""
    book = ClaimBook()
    for record in (claim("a"), claim("b"), claim("a"), released("a"), claim("a"), claim("b")):
        book.apply(record, 1)
    assert holder(book) is None
    book.apply(claim("c"), 1)
    assert holder(book) == "c" and book.verdict("a") and book.verdict("b") is False


def test_states_only_move_forward() -> None:
    """What is done is never released, nor the other way; only the holder's facts count."""
    book = ClaimBook()
    for record in (claim("a"), released("b"), done("b"), done("a", 7), released("a"), done("a", 8)):
        book.apply(record, 1)
    held = book.held("s")
    assert held is not None and held.claim.nonce == "a"
    assert held.done is not None and held.done.end_offset == 7
    other = ClaimBook()
    for record in (claim("a"), released("a"), done("a"), record_of(_resumed())):
        other.apply(record, 1)
    assert holder(other) is None


def _resumed() -> ReplyResumed:
    return ReplyResumed(request_id="r", gateway="gateway-1/1")


def test_a_key_is_new_after_a_day_of_append_times() -> None:
    """A day is judged between append times of the partition, and what is older is forgotten."""
    book = ClaimBook()
    book.apply(claim("a"), 1_000)
    book.apply(claim("b"), 1_000 + DAY_MS - 1)
    assert holder(book) == "a" and len(book) == 2
    book.apply(claim("c"), 1_000 + DAY_MS)
    assert holder(book) == "c" and book.verdict("a") is None and len(book) == 2
    book.apply(claim("d", "other"), 1_000 + 3 * DAY_MS)
    assert holder(book) is None and len(book) == 1


def test_a_brokers_clock_that_steps_back_revives_nobody() -> None:
    """Age is counted from the highest append time read."""
    book = ClaimBook()
    book.apply(claim("a"), 0)
    book.apply(claim("x", "other"), DAY_MS)
    book.apply(claim("b"), DAY_MS - 10)
    assert holder(book) == "b"


def test_claims_that_are_read_again_after_their_day_stay_forgotten() -> None:
    """A tail that begins anew judges nothing twice, neither what it kept nor what it forgot."""
    book = ClaimBook()
    log = [(claim("a"), 0), (claim("b"), 5), (claim("x", "other"), DAY_MS + 1)]
    for record, at_ms in [*log, *log]:
        book.apply(record, at_ms)
    assert holder(book) is None and book.verdict("b") is False and len(book) == 2


@given(
    st.lists(
        st.sampled_from("abcd").flatmap(
            lambda nonce: st.sampled_from([claim(nonce), done(nonce), released(nonce)])
        ),
        max_size=30,
    ),
    st.integers(0, 30),
)
def test_every_reader_of_the_log_agrees(records: list[IdempotencyRecord], cut: int) -> None:
    """A nonce never wins twice, a verdict never changes, one claim at most holds a scope."""
    book = ClaimBook()
    verdicts: dict[str, bool] = {}
    holders: list[str] = []
    for record in records[:cut]:
        book.apply(record, 1)
        for nonce in "abcd":
            verdict = book.verdict(nonce)
            if verdict is not None:
                assert verdicts.setdefault(nonce, verdict) is verdict
        now = holder(book)
        if now and (not holders or holders[-1] != now):
            assert now not in holders, "a released claim came back"
            holders.append(now)


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("abc", "abc"),
        ("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        ('"abc"', "abc"),
        (r'"a\"b\\c"', 'a"b\\c'),
        ('"with space"', "with space"),
        ("  abc ", "abc"),
        ("k" * 255, "k" * 255),
    ],
)
def test_keys_are_read_quoted_and_bare(header: str, key: str) -> None:
    """A structured-field string and the bare form name the same key."""
    assert read_key(header) == key


@pytest.mark.parametrize(
    "header", ["", '""', '" "', '"abc', "a b", "ä", '"a"b"', "k" * 256, "\x00"]
)
def test_malformed_keys_are_refused(header: str) -> None:
    """Nothing that is no key is taken for one."""
    with pytest.raises(InvalidRequest, match="idempotency-key"):
        read_key(header)


def test_scopes_keep_orgs_workspaces_and_keys_apart() -> None:
    """No two triples share a scope by being joined differently."""
    scopes = [
        scope_of(*parts)
        for parts in (("a", "bc", "k"), ("ab", "c", "k"), ("a", "b", "ck"), ("a", "bc", "l"))
    ]
    assert len(set(scopes)) == 4


def test_fingerprints_see_meaning_not_spelling() -> None:
    """Member order does not count; method, path, version and any value do."""
    first = fingerprint_of("POST", "/v1/messages", "v", {"a": 1, "b": [{"c": 2, "d": 3}]})
    assert first == fingerprint_of("POST", "/v1/messages", "v", {"b": [{"d": 3, "c": 2}], "a": 1})
    others = [
        fingerprint_of("POST", "/v1/messages", "v", {"a": 1, "b": []}),
        fingerprint_of("POST", "/v1/chat/completions", "v", {"a": 1, "b": [{"c": 2, "d": 3}]}),
        fingerprint_of("POST", "/v1/messages", "w", {"a": 1, "b": [{"c": 2, "d": 3}]}),
        fingerprint_of("PUT", "/v1/messages", "v", {"a": 1, "b": [{"c": 2, "d": 3}]}),
    ]
    assert len({first, *others}) == 5


def test_only_a_close_without_tokens_is_void() -> None:
    """A reply that still runs, has tokens or has a terminal keeps its key."""

    def fold(*facts: Start | Delta | Closed) -> ReplyFold:
        made = ReplyFold()
        for fact in facts:
            assert made.apply(fact, 1)
        return made

    late = closed(CloseReason.LATE)
    assert is_void(fold(late)) and is_void(fold(start(), late))
    assert not is_void(fold(start()))
    assert not is_void(fold(start(), delta(0, 5), late))
    assert not is_void(fold(start(), delta(0, 5, ends_with=(5,))))
