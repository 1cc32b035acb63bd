"""Secrets of one data folder: made once, kept in DIR/secrets, readable by the owner only.

Owns their names and files. The development keys are API keys like any other: `infra/keys.py` makes
them and `infra/supervisor/seed.py` writes their hashes to `control.v1`.
"""

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from infra.keys import create_key
from infra.ports import Clock, Entropy
from schemas.operations import KeyCreated

__all__ = ["Credentials", "DevelopmentKey", "obtain", "read_secret"]

DEV_ORG = "dev"
_LOCATOR_KEY_BYTES = 32
_PASSWORD_BYTES = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class DevelopmentKey:
    """An API key whose secret is kept, so that the first request can be pasted."""

    secret: str
    created: KeyCreated


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """All secrets of one data folder."""

    locator_key: bytes = dataclasses.field(repr=False)
    clickhouse_password: str = dataclasses.field(repr=False)
    dev: DevelopmentKey = dataclasses.field(repr=False)
    admin: DevelopmentKey = dataclasses.field(repr=False)


def obtain(folder: Path, entropy: Entropy, clock: Clock) -> Credentials:
    """Return the folder's secrets, making those that it lacks. Raises OSError."""
    locator_key = _keep(folder / "locator_key", lambda: entropy.token(_LOCATOR_KEY_BYTES).hex())
    password = _keep(folder / "clickhouse_password", lambda: entropy.token(_PASSWORD_BYTES).hex())
    return Credentials(
        locator_key=bytes.fromhex(locator_key),
        clickhouse_password=password,
        dev=_key(folder, "dev_key", False, entropy, clock),
        admin=_key(folder, "admin_key", True, entropy, clock),
    )


def read_secret(folder: Path, name: str) -> str | None:
    """Return a secret by name, or None where it was not made or may not be read."""
    try:
        return (folder / name).read_text().strip()
    except OSError:
        return None


def _key(folder: Path, name: str, admin: bool, entropy: Entropy, clock: Clock) -> DevelopmentKey:
    """Return the key `name`: its secret in one file, the fact for the log in another."""

    def make() -> str:
        secret, created = create_key(entropy=entropy, clock=clock, org=DEV_ORG, admin=admin)
        _write(folder / name, secret)
        return msgspec.json.encode(created).decode()

    created = msgspec.json.decode(_keep(folder / f"{name}.json", make), type=KeyCreated)
    return DevelopmentKey(secret=(folder / name).read_text().strip(), created=created)


def _keep(path: Path, make: Callable[[], str]) -> str:
    if not path.exists():
        _write(path, make())
    return path.read_text().strip()


def _write(path: Path, text: str) -> None:
    """Write a secret so that nobody else can read it and a crash leaves none or all of it."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, (text + "\n").encode())
    finally:
        os.close(descriptor)
    partial.replace(path)
