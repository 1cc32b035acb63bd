"""Ids and their public forms: request ids, the reply locator with its MAC, base62.

Owns how one id is written on the wire, in log lines and in ClickHouse, and how those convert into
each other. Makes no id: entropy comes from `infra.ports.Entropy`. Called by gateway (mint, show),
audit (find), everyone (types).
"""

import hmac
import struct
import uuid
from functools import lru_cache
from typing import NewType

from msgspec import Struct

RequestId = NewType("RequestId", str)
"""Canonical UUID text (36 characters); the `request_id` of every event, log line and ClickHouse
row."""
AttemptId = NewType("AttemptId", str)
"""Canonical UUID text; used by one start of one worker incarnation, ever."""
OrgId = NewType("OrgId", str)

REQUEST_PREFIX = "req_"
REPLY_PREFIXES = {
    "anthropic": "msg_",
    "openai": "chatcmpl-",
    "openai_completions": "cmpl-",
    "openai_responses": "resp_",
}
"""By dialect."""

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_DIGITS = {character: value for value, character in enumerate(_ALPHABET)}
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_PAIR = len(_PAIRS)
_LOCATOR = struct.Struct(">BHIHQ16s")  # version, cell, incarnation, partition, floor, request id
_LOCATOR_VERSION = 1
_MAC_BYTES = 16
_REQUEST_CHARS = 22  # 62**22 > 2**128
_LOCATOR_CHARS = 66  # 62**66 > 2**(8 * 49)


class Locator(Struct, frozen=True, kw_only=True):
    """Where a reply lives on the log, for life (design rule 6.7)."""

    cell: int
    incarnation: int
    """Random number that `apply` wrote to the control topic when it made `replies.v1`."""
    partition: int
    floor: int
    """First offset of `partition` that can hold anything of this reply."""


class InvalidId(ValueError):
    """A public id that is malformed, foreign or forged; callers answer 404."""


def show_request_id(request_id: RequestId) -> str:
    """Return the `request-id` header form, `req_` and 22 base62 characters."""
    return REQUEST_PREFIX + base62(_bytes_of(request_id), _REQUEST_CHARS)


def show_reply_id(
    dialect: str, locator: Locator, request_id: RequestId, org: str, workspace: str, key: bytes
) -> str:
    """Return the public reply id: the dialect's prefix, then locator and MAC in base62."""
    body = _LOCATOR.pack(
        _LOCATOR_VERSION,
        locator.cell,
        locator.incarnation,
        locator.partition,
        locator.floor,
        _bytes_of(request_id),
    )
    return REPLY_PREFIXES[dialect] + base62(body + _mac(body, org, workspace, key), _LOCATOR_CHARS)


def read_reply_id(reply_id: str, org: str, workspace: str, key: bytes) -> tuple[Locator, RequestId]:
    """Return what a public reply id names, after checking its MAC for this org and workspace.

    Raises InvalidId where the id is malformed or its MAC does not belong to `org` and `workspace`.
    """
    locator, request_id, body, mac = _split_reply_id(reply_id)
    if not hmac.compare_digest(mac, _mac(body, org, workspace, key)):
        raise InvalidId(f"no reply {reply_id!r}")
    return locator, request_id


def find_request_id(any_id: str) -> RequestId:
    """Return the request id inside any form that Millstream shows: header, reply id or UUID.

    The MAC is not checked: this is for operators, who hold no org's identity. Raises InvalidId.
    """
    if any_id.startswith(REQUEST_PREFIX):
        raw = _unbase62(any_id.removeprefix(REQUEST_PREFIX), _REQUEST_CHARS, 16)
        return RequestId(str(uuid.UUID(bytes=raw)))
    if any_id.startswith(tuple(REPLY_PREFIXES.values())):
        return _split_reply_id(any_id)[1]
    try:
        return RequestId(str(uuid.UUID(any_id)))
    except ValueError:
        raise InvalidId(
            f"{any_id!r} is not an id of ours: expected req_..., a UUID, or "
            + ", ".join(f"{prefix}..." for prefix in REPLY_PREFIXES.values())
        ) from None


def _split_reply_id(reply_id: str) -> tuple[Locator, RequestId, bytes, bytes]:
    prefix = next((p for p in REPLY_PREFIXES.values() if reply_id.startswith(p)), None)
    if prefix is None:
        raise InvalidId(f"no reply {reply_id!r}")
    raw = _unbase62(reply_id.removeprefix(prefix), _LOCATOR_CHARS, _LOCATOR.size + _MAC_BYTES)
    body, mac = raw[: _LOCATOR.size], raw[_LOCATOR.size :]
    version, cell, incarnation, partition, floor, request = _LOCATOR.unpack(body)
    if version != _LOCATOR_VERSION:
        raise InvalidId(f"no reply {reply_id!r}")
    locator = Locator(cell=cell, incarnation=incarnation, partition=partition, floor=floor)
    return locator, RequestId(str(uuid.UUID(bytes=request))), body, mac


def _mac(body: bytes, org: str, workspace: str, key: bytes) -> bytes:
    # Lengths stand before the names, so that ("a", "bc") and ("ab", "c") differ.
    names = b"".join(
        struct.pack(">H", len(name)) + name for name in (org.encode(), workspace.encode())
    )
    code = _keyed(key).copy()
    code.update(body + names)
    return code.digest()[:_MAC_BYTES]


@lru_cache(maxsize=4)
def _keyed(key: bytes) -> hmac.HMAC:
    """Return a code that holds the key alone: copies of it spare the digest's look-up by name."""
    return hmac.new(key, digestmod="sha256")


def base62(raw: bytes, width: int) -> str:
    """Return `raw` as a big-endian number in exactly `width` base62 digits."""
    number, pairs = int.from_bytes(raw, "big"), list[str]()
    for _ in range(0, width, 4):
        # Divisions of the long number are what costs: each gives four digits.
        number, part = divmod(number, _PAIR * _PAIR)
        pairs.append(_PAIRS[part % _PAIR])
        pairs.append(_PAIRS[part // _PAIR])
    pairs.reverse()
    text = "".join(pairs)
    beyond = len(text) - width
    assert number == 0 and text[:beyond].strip("0") == "", "width is too small for these bytes"
    return text[beyond:]


def _bytes_of(request_id: RequestId) -> bytes:
    return bytes.fromhex(request_id.replace("-", ""))


def _unbase62(text: str, width: int, size: int) -> bytes:
    if len(text) != width:
        raise InvalidId(f"id has {len(text)} characters after its prefix, expected {width}")
    number = 0
    for character in text:
        if character not in _DIGITS:
            raise InvalidId(f"id holds {character!r}, expected base62")
        number = number * 62 + _DIGITS[character]
    try:
        return number.to_bytes(size, "big")
    except OverflowError:
        raise InvalidId("id is out of range") from None
