"""A call, or a list of calls, that is there whole or breaks off: its members in any order.

Owns what counts as a call where a model writes it in its own way: arguments before the name, other
members between, arguments as a string that holds JSON. Called by `tool_calls.py`.
"""

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from schemas.assembler.json_scan import JsonScanner, completed

__all__ = ["WrittenCall", "may_be_bare_call", "read_calls", "read_cut_calls"]

_NAME: Final = re.compile(r"[^\s\x00-\x1f]{1,128}")
_BARE_HEAD: Final = re.compile(
    r'\s*\{\s*("[a-z]*"?)?\s*:?\s*(?:"[^"\\\s\x00-\x1f]{0,128}"?)?'
    r'\s*,?\s*("[a-z]*"?)?\s*:?\s*'
)
"""Of what is known to be the beginning of JSON: first key, a text, second key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCall:
    """One whole call."""

    name: str
    arguments: str
    """JSON text of an object; empty where the call broke off before it."""


class _Members(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()


_decoder: Final = msgspec.json.Decoder(_Members | list[_Members])


def read_calls(text: str, *, bare: bool) -> tuple[WrittenCall, ...]:
    """Return the calls that a JSON text is; none where it is not a call or not only calls.

    A bare object is a call only with arguments: without a tag, nothing else tells it from data.
    """
    try:
        members = _decoder.decode(text)
    except msgspec.DecodeError:
        return ()
    calls = []
    for each in members if isinstance(members, list) else [members]:
        arguments = _arguments(each, bare=bare)
        if arguments is None or not _NAME.fullmatch(each.name):
            return ()
        calls.append(WrittenCall(name=each.name, arguments=arguments))
    return tuple(calls)


def read_cut_calls(text: str) -> tuple[WrittenCall, ...]:
    """Return the calls whose names are known in a JSON text that breaks off, with what they have
    of their arguments; a value that is not whole counts as absent."""
    try:
        members = _decoder.decode(completed(text))
    except msgspec.DecodeError:
        return ()
    calls = []
    for each in members if isinstance(members, list) else [members]:
        has_arguments = bytes(each.arguments) or bytes(each.parameters)
        arguments = _arguments(each, bare=False) if has_arguments else ""
        if arguments is not None and _NAME.fullmatch(each.name):
            calls.append(WrittenCall(name=each.name, arguments=arguments))
    return tuple(calls)


def may_be_bare_call(text: str) -> bool:
    """Tell whether the beginning of a JSON text may be that of a call as models are taught to
    write it, up to its arguments: without a tag, anything else is rather data."""
    head = _BARE_HEAD.fullmatch(text)
    if head is None or not '"name"'.startswith(head[1] or ""):
        return False
    second = head[2] or ""
    return '"arguments"'.startswith(second) or '"parameters"'.startswith(second)


def _arguments(members: _Members, *, bare: bool) -> str | None:
    """Return the object that a call's arguments are, or None."""
    text = (bytes(members.arguments) or bytes(members.parameters)).decode()
    if not text and bare:
        return None
    if text in ("", "null"):
        return "{}"
    if text.startswith('"'):
        try:
            text = msgspec.json.decode(text, type=str).strip()
        except msgspec.DecodeError:
            return None
    scanner = JsonScanner()
    whole = scanner.push(text) == len(text) and scanner.done
    return scanner.take() if whole and text.startswith("{") else None
