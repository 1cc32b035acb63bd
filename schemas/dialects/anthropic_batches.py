"""Anthropic's Message Batches API: reading what makes a batch, and how times are written. Pure.

Bodies are not decoded whole: each item's `params` stays as it was sent until it is run, so that a
large batch takes little more memory than its bytes.

Source: https://docs.anthropic.com/en/api/creating-message-batches; anthropic-python 2.14.0.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Raw

from schemas import limits
from schemas.dialects import fields
from schemas.dialects.canonical import InvalidRequest, shown

__all__ = ["read_batch", "rfc3339"]

_CUSTOM_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_LIST: Final = msgspec.json.Decoder(list[Raw])


def read_batch(body: bytes | bytearray) -> list[bytes]:
    """Return the lines of a batch's input, one for each item, without their ends.

    Raises: InvalidRequest, naming the field; with status 413 where there are too many items or one
        is too large.
    """
    members = _members(body, "")
    fields.refuse_extra(members, ("requests",), "")
    requests = fields.required(members, "requests")
    assert isinstance(requests, Raw)
    try:
        items = _LIST.decode(requests)
    except msgspec.MsgspecError:
        raise InvalidRequest("requests", "Input should be a valid list") from None
    if not items:
        raise InvalidRequest("requests", "at least one request is required")
    if len(items) > limits.BATCH_ITEMS_MAX:
        raise InvalidRequest(
            "requests", f"List should have at most {limits.BATCH_ITEMS_MAX} items", 413
        )
    seen: dict[str, int] = {}
    return [_line(index, item, seen) for index, item in enumerate(items)]


def rfc3339(at_ms: int | None) -> str | None:
    """Return a time as the API writes it."""
    if at_ms is None:
        return None
    second = datetime.fromtimestamp(at_ms // 1_000, UTC)
    return f"{second:%Y-%m-%dT%H:%M:%S}.{at_ms % 1_000:03d}Z"


def _line(index: int, item: Raw, seen: dict[str, int]) -> bytes:
    path = f"requests.{index}"
    members = _members(item, path)
    fields.refuse_extra(members, ("custom_id", "params"), path)
    custom_id = _custom_id(members, path, index, seen)
    params = fields.required(members, "params", path)
    assert isinstance(params, Raw)
    flat = msgspec.json.format(bytes(params), indent=-1)  # on one line, whatever it was
    if not flat.startswith(b"{"):
        raise InvalidRequest(f"{path}.params", "Input should be an object")
    if len(flat) > limits.BATCH_ITEM_BYTES_MAX - limits.KIB:
        largest = limits.BATCH_ITEM_BYTES_MAX - limits.KIB
        raise InvalidRequest(f"{path}.params", f"larger than {largest} bytes", 413)
    return msgspec.json.encode({"custom_id": custom_id, "params": Raw(flat)})


def _custom_id(members: Mapping[str, Raw], path: str, index: int, seen: dict[str, int]) -> str:
    where = f"{path}.custom_id"
    raw = fields.required(members, "custom_id", path)
    assert isinstance(raw, Raw)
    try:
        custom_id = msgspec.json.decode(raw, type=str)
    except msgspec.MsgspecError:
        raise InvalidRequest(where, "Input should be a valid string") from None
    if not _CUSTOM_ID.fullmatch(custom_id):
        raise InvalidRequest(where, f"String should match pattern '^{_CUSTOM_ID.pattern}$'")
    first = seen.setdefault(custom_id, index)
    if first != index:
        text = f"'{shown(custom_id)}' is not unique: requests.{first} has it too"
        raise InvalidRequest(where, text)
    return custom_id


def _members(value: bytes | bytearray | Raw, path: str) -> dict[str, Raw]:
    try:
        return _OBJECT.decode(value)
    except RecursionError as error:
        raise InvalidRequest("", "the request body is JSON nested too deeply") from error
    except msgspec.ValidationError:
        fields.as_object(None, path)
        raise AssertionError("refused") from None
    except msgspec.MsgspecError as error:
        raise InvalidRequest("", f"the request body is not valid JSON: {error}") from error
