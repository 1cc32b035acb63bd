"""Who asks: the API key of a call, and what the key may do.

Owns how a secret is read from headers. Keys themselves come from `infra/control.py`. Pure.
"""

from collections.abc import Mapping

from gateway.errors import NotAuthenticated, NotPermitted
from infra.keys import find_key
from schemas.operations import KeyCreated
from schemas.requests import Identity

__all__ = ["authenticate", "identity_of", "require_admin", "secret_of"]

_SECRET_CHARS_MAX = 512


def secret_of(headers: Mapping[str, str]) -> str | None:
    """Return the secret of a call: `x-api-key`, or else a Bearer token; None where neither is."""
    secret = headers.get("x-api-key")
    if secret:
        return secret.strip()
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def authenticate(headers: Mapping[str, str], keys: Mapping[str, KeyCreated]) -> KeyCreated:
    """Return the key of a call. Raises NotAuthenticated."""
    secret = secret_of(headers)
    if secret is None:
        raise NotAuthenticated("no API key: send x-api-key or Authorization: Bearer")
    # No secret of ours is that long; hashing a megabyte for a stranger is work for nothing.
    key = find_key(secret, keys) if len(secret) <= _SECRET_CHARS_MAX else None
    if key is None:
        raise NotAuthenticated("invalid x-api-key or bearer token")
    return key


def require_admin(key: KeyCreated) -> None:
    """Let administrators pass. Raises NotPermitted."""
    if not key.admin:
        raise NotPermitted("this path needs an admin key")


def identity_of(key: KeyCreated, user: str | None) -> Identity:
    """Return what the request's events carry about who asked."""
    return Identity(org=key.org, workspace=key.workspace, key_id=key.key_id, user=user)
