"""Compressed answers: gzip where a client takes it and it pays.

Owns what pays. Streams are never compressed: an event has to leave at once, and a compressor holds
bytes back. Called by those who send bodies whole.

Source: RFC 9110 section 12.5.3 (accept-encoding).
"""

import asyncio
import gzip

from schemas import limits

__all__ = ["compressed", "takes_gzip"]

_WORTH_BYTES_MIN = 2 * limits.KIB
"""A body of one packet or two arrives no sooner for being shorter."""
_INLINE_BYTES_MAX = 64 * limits.KIB
"""Above it compression takes more than 2 ms and is done in a thread."""
_LEVEL = 5

_VARY = (b"vary", b"accept-encoding")
_GZIP = (b"content-encoding", b"gzip")


async def compressed(
    body: bytes, accept_encoding: str
) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
    """Return a body as its client wants it, and the headers that tell how it is encoded."""
    if len(body) < _WORTH_BYTES_MIN:
        return body, ()
    if not takes_gzip(accept_encoding):
        return body, (_VARY,)
    if len(body) > _INLINE_BYTES_MAX:
        return await asyncio.to_thread(_gzip, body), (_VARY, _GZIP)
    return _gzip(body), (_VARY, _GZIP)


def takes_gzip(accept_encoding: str) -> bool:
    """Tell whether a client asks for gzip by its `accept-encoding`; absent, it does not."""
    wanted = False
    for entry in accept_encoding.lower().split(","):
        name, _, parameters = entry.partition(";")
        quality = parameters.strip().removeprefix("q=").strip()
        accepted = not quality or quality.strip("0.") != ""
        if name.strip() in ("gzip", "x-gzip"):
            return accepted
        if name.strip() == "*":
            wanted = accepted
    return wanted


def _gzip(body: bytes) -> bytes:
    return gzip.compress(body, _LEVEL, mtime=0)  # equal bodies stay equal
