"""Ids inside a reply: of tool calls and of output items.

Owns that they are a function of the reply: whoever assembles it, again or elsewhere, shows the
same. They are unique within a conversation because the reply's id is.
"""

import hashlib

from schemas.ids import base62

__all__ = ["item_id"]

_CHARS = 24
_BYTES = 17  # 62**24 > 2**(8 * 17)


def item_id(prefix: str, reply_id: str, choice: int, index: int) -> str:
    """Return the id of the `index`th item of a kind, which the prefix names, in a choice."""
    digest = hashlib.sha256(f"{prefix}{reply_id}/{choice}/{index}".encode()).digest()
    return prefix + base62(digest[:_BYTES], _CHARS)
