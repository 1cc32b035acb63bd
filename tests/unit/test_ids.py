"""Public ids: they round-trip, and forged ones are refused."""

import pytest

from schemas.ids import (
    InvalidId,
    Locator,
    RequestId,
    find_request_id,
    read_reply_id,
    show_reply_id,
    show_request_id,
)

REQUEST = RequestId("3f2b1c54-9d8e-4f70-a1b2-c3d4e5f60718")
LOCATOR = Locator(cell=1, incarnation=2**32 - 1, partition=3, floor=2**40)
KEY = b"k" * 32


def test_a_reply_id_gives_back_its_locator() -> None:
    """Both dialects' ids carry locator and request id."""
    for dialect, prefix in (("anthropic", "msg_"), ("openai", "chatcmpl-")):
        reply_id = show_reply_id(dialect, LOCATOR, REQUEST, "org", "w", KEY)
        assert reply_id.startswith(prefix)
        assert read_reply_id(reply_id, "org", "w", KEY) == (LOCATOR, REQUEST)


def test_a_reply_id_of_another_org_or_key_is_refused() -> None:
    """The MAC covers org and workspace, and where one ends and the other begins."""
    reply_id = show_reply_id("anthropic", LOCATOR, REQUEST, "ab", "c", KEY)
    for org, workspace, key in (("a", "bc", KEY), ("ab", "d", KEY), ("ab", "c", b"x" * 32)):
        with pytest.raises(InvalidId):
            read_reply_id(reply_id, org, workspace, key)


def test_changing_any_character_of_a_reply_id_is_noticed() -> None:
    """No single altered character passes."""
    reply_id = show_reply_id("anthropic", LOCATOR, REQUEST, "org", "w", KEY)
    for index in range(len("msg_"), len(reply_id)):
        other = "0" if reply_id[index] != "0" else "1"
        with pytest.raises(InvalidId):
            read_reply_id(reply_id[:index] + other + reply_id[index + 1 :], "org", "w", KEY)


def test_every_public_form_leads_to_the_same_request_id() -> None:
    """Header form, message id and UUID convert into each other."""
    forms = [
        str(REQUEST).upper(),
        show_request_id(REQUEST),
        show_reply_id("anthropic", LOCATOR, REQUEST, "org", "w", KEY),
        show_reply_id("openai", LOCATOR, REQUEST, "org", "w", KEY),
    ]
    assert {find_request_id(form) for form in forms} == {REQUEST}


@pytest.mark.parametrize("text", ["", "req_", "req_!!", "msg_123", "hello", "req_" + "z" * 22])
def test_a_malformed_id_is_refused_with_what_was_expected(text: str) -> None:
    """Nothing else is taken for an id."""
    with pytest.raises(InvalidId):
        find_request_id(text)
