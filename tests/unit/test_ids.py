"""Public ids: they round-trip, and forged ones are refused."""

import hmac
import string
import struct
import uuid

import pytest

from schemas.ids import (
    InvalidId,
    Locator,
    RequestId,
    base62,
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


@pytest.mark.parametrize("width", [22, 23, 66])
def test_base62_has_one_digit_for_each_power_of_62(width: int) -> None:
    """Digits stand most significant first, filled up with zeros to the width asked for."""
    alphabet = string.digits + string.ascii_uppercase + string.ascii_lowercase
    for raw in (b"\0" * 16, b"\0" * 15 + b"\x3e", bytes(range(16)), b"\xff" * 16):
        digits, number = "", int.from_bytes(raw, "big")
        for _ in range(width):
            number, digit = divmod(number, 62)
            digits = alphabet[digit] + digits
        assert base62(raw, width) == digits


def test_base62_refuses_a_width_that_is_too_small() -> None:
    """No digit is ever dropped."""
    for width in (21, 10, 1):
        with pytest.raises(AssertionError):
            base62(b"\xff" * 16, width)


def test_a_reply_id_is_the_same_for_ever() -> None:
    """Ids that clients hold stay good: the locator's bytes and its HMAC-SHA256, in base62."""
    body = struct.pack(">BHIHQ16s", 1, 1, 2**32 - 1, 3, 2**40, uuid.UUID(REQUEST).bytes)
    names = b"\0\x03org\0\x01w"
    mac = hmac.digest(KEY, body + names, "sha256")[:16]
    shown = show_reply_id("openai", LOCATOR, REQUEST, "org", "w", KEY)
    assert shown == "chatcmpl-" + base62(body + mac, 66)


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
