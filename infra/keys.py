"""API keys: how one is made, hashed and found.

Owns the form of a secret (`sk-ms-` and 43 base62 characters) and its hash. A secret is shown once,
when made; everything else holds its SHA-256 only. Called by gateways (find) and `millstream keys`.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping

from infra.ports import Clock, Entropy
from schemas.ids import base62
from schemas.operations import KeyCreated

__all__ = ["SECRET_PREFIX", "InvalidName", "create_key", "find_key", "hash_secret"]

SECRET_PREFIX = "sk-ms-"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SECRET_BYTES = 32
_SECRET_CHARS = 43  # 62**43 > 2**256
_KEY_ID_BYTES = 12
_KEY_ID_CHARS = 17  # 62**17 > 2**96


class InvalidName(ValueError):
    """An org, workspace or tier that is not a plain name."""


def create_key(
    *,
    entropy: Entropy,
    clock: Clock,
    org: str,
    workspace: str = "default",
    tier: str = "default",
    admin: bool = False,
) -> tuple[str, KeyCreated]:
    """Return a fresh secret and the fact to append to `control.v1` before showing it.

    Raises: InvalidName where org, workspace or tier is not a name: they travel in headers, log
        lines and SQL.
    """
    for what, name in (("org", org), ("workspace", workspace), ("tier", tier)):
        if not _NAME.fullmatch(name):
            raise InvalidName(
                f"{what}: {name!r} given, expected 1 to 64 letters, digits, '.', '_' or '-', "
                "beginning with a letter or digit"
            )
    secret = SECRET_PREFIX + base62(entropy.token(_SECRET_BYTES), _SECRET_CHARS)
    created = KeyCreated(
        key_id="key_" + base62(entropy.token(_KEY_ID_BYTES), _KEY_ID_CHARS),
        secret_sha256=hash_secret(secret),
        org=org,
        workspace=workspace,
        tier=tier,
        admin=admin,
        created_ms=clock.now_ms(),
    )
    return secret, created


def hash_secret(secret: str) -> str:
    """Return the SHA-256 of a whole secret in hexadecimal.

    A plain hash is enough: the secret has 256 random bits, so there is nothing to guess.
    """
    return hashlib.sha256(secret.encode()).hexdigest()


def find_key(secret: str, keys: Mapping[str, KeyCreated]) -> KeyCreated | None:
    """Return the active key of a secret.

    Only hashes are compared, in constant time at the end: how long a look-up takes tells nothing
    about a secret.
    """
    hashed = hash_secret(secret)
    key = keys.get(hashed)
    if key is None or not hmac.compare_digest(key.secret_sha256, hashed):
        return None
    return key
