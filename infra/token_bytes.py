"""The bytes that one token stands for, from its spelling in the vocabulary.

Owns the two ways in which vocabularies spell bytes: byte-level (each byte as a printable character)
and with fallback (`<0xE2>`, and U+2581 for a space). Reads no files; called by `tokenizer.py`.

Source: openai/gpt-2 `encoder.py`, `bytes_to_unicode`; google/sentencepiece, byte fallback.
"""

import re
from collections.abc import Callable
from typing import Final

__all__ = ["spelling_reader"]

_FALLBACK: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE: Final = "▁"


def spelling_reader(decoder: str) -> Callable[[str], bytes]:
    """Return what reads a vocabulary's spellings, given its decoder's settings as JSON."""
    if '"ByteLevel"' in decoder:
        return _byte_level
    return _with_fallback if '"ByteFallback"' in decoder else _plain


def _byte_level(spelling: str) -> bytes:
    try:
        return bytes(_BYTES[character] for character in spelling)
    except KeyError:
        return spelling.encode()


def _with_fallback(spelling: str) -> bytes:
    fallback = _FALLBACK.fullmatch(spelling)
    return bytes([int(fallback[1], 16)]) if fallback else _plain(spelling)


def _plain(spelling: str) -> bytes:
    return spelling.replace(_SPACE, " ").encode()


def _byte_table() -> dict[str, int]:
    """Return bytes by character: printable Latin-1 ones are themselves, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + index): byte for index, byte in enumerate(rest)}


_BYTES: Final = _byte_table()
