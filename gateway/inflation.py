"""Compressed request bodies: which are taken, and their content within a bound.

Owns the guard against bodies that are small only while compressed. Called by `bodies.py`, in a
thread.

Source: RFC 1952 (gzip), RFC 9110 section 8.4 (content-encoding).
"""

import zlib
from collections.abc import Mapping

from gateway.errors import BodyTooLarge
from schemas import limits
from schemas.dialects.canonical import InvalidRequest

__all__ = ["inflate", "is_compressed"]

_GZIP_ONLY = zlib.MAX_WBITS | 16
_PIECE_BYTES = 256 * limits.KIB
"""How much is inflated before the bound is looked at again."""


def is_compressed(headers: Mapping[str, str]) -> bool:
    """Tell whether a body is gzip. Raises InvalidRequest for any other encoding."""
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return False
    if encoding in ("gzip", "x-gzip"):
        return True
    raise InvalidRequest("content-encoding", "bodies may be compressed with gzip only")


def inflate(compressed: bytes, bytes_max: int) -> bytearray:
    """Return the content of one gzip stream.

    Raises: BodyTooLarge as soon as it is larger than `bytes_max`, InvalidRequest where it is no
        gzip, breaks off, or is followed by anything else.
    """
    content, stream, piece = bytearray(), zlib.decompressobj(_GZIP_ONLY), compressed
    while not stream.eof:
        try:
            part = stream.decompress(piece, _PIECE_BYTES)
        except zlib.error as error:
            raise InvalidRequest("content-encoding", "the body is not valid gzip") from error
        piece = stream.unconsumed_tail
        content += part
        if len(content) > bytes_max:
            raise BodyTooLarge(f"request body is larger than {bytes_max} bytes when inflated")
        if not part and not piece and not stream.eof:
            raise InvalidRequest("content-encoding", "the body's gzip stream breaks off")
    if stream.unused_data:
        raise InvalidRequest("content-encoding", "the body goes on after its gzip stream")
    return content
