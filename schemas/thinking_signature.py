"""Signatures of thinking blocks, so that a block which a client sends back is known to be ours.

Owns how a thinking text is signed and checked. The key is the platform's (`locator_key`): every
gateway signs and knows the others' signatures. Called by the gateway for the dialects and the
assembler, which know functions only.
"""

import base64
import binascii
import hashlib
import hmac

__all__ = ["sign_thinking", "verify_thinking"]

_DOMAIN = b"thinking\x00"
"""The key signs reply ids too; neither kind of text can be taken for the other."""


def sign_thinking(thinking: str, key: bytes) -> str:
    """Return the signature of a thinking text, base64."""
    return base64.b64encode(_mac(thinking, key)).decode()


def verify_thinking(thinking: str, signature: str, key: bytes) -> bool:
    """Tell whether a signature is ours for this text; whatever it holds, it raises nothing."""
    try:
        given = base64.b64decode(signature, validate=True)
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(given, _mac(thinking, key))


def _mac(thinking: str, key: bytes) -> bytes:
    text = thinking.encode("utf-8", "surrogatepass")  # a client may have sent any string
    return hmac.new(key, _DOMAIN + text, hashlib.sha256).digest()
