"""Idempotency keys: how one is read, what it covers, and which claim of it wins.

Pure decisions (design rule 6.8). The order of the log alone judges: of the claims of one scope the
first to land wins for 24 hours, unless it is released. Read back by `claim_tail.py`, acted on by
`claims.py` and `keyed.py`.
"""

import hashlib
import re
from collections import deque
from dataclasses import dataclass

import msgspec

from schemas import limits
from schemas.dialects.canonical import InvalidRequest
from schemas.fold import ReplyFold
from schemas.idempotency import IdempotencyRecord, KeyClaimed, KeyDone, KeyReleased

__all__ = ["ClaimBook", "Held", "fingerprint_of", "is_void", "read_key", "scope_of"]

_VISIBLE = re.compile(r"[\x21-\x7e]+")
_QUOTED = re.compile(r'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')


def read_key(value: str) -> str:
    """Return the key of an `Idempotency-Key` header, quoted (RFC 9651 string) or bare.

    Raises: InvalidRequest where it is empty, too long or malformed.
    """
    text = value.strip()
    if text.startswith('"'):
        quoted = _QUOTED.fullmatch(text)
        key = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else ""
    else:
        key = text if _VISIBLE.fullmatch(text) else ""
    if not key.strip():
        raise InvalidRequest("idempotency-key", "expected visible ASCII characters, quoted or bare")
    if len(key) > limits.IDEMPOTENCY_KEY_CHARS_MAX:
        longest = limits.IDEMPOTENCY_KEY_CHARS_MAX
        raise InvalidRequest("idempotency-key", f"longer than {longest} characters")
    return key


def scope_of(org: str, workspace: str, key: str) -> str:
    """Return the name under which a key of a workspace stands in the log."""
    parts = b"".join(len(raw).to_bytes(4, "big") + raw for raw in map(str.encode, (org, workspace)))
    return hashlib.sha256(parts + key.encode()).hexdigest()


def fingerprint_of(method: str, path: str, version: str, body: object) -> str:
    """Return what tells equal requests: member order and white space of the body do not count."""
    canonical = msgspec.json.encode(body, order="sorted")
    head = msgspec.json.encode([method, path, version])
    return hashlib.sha256(head + b"\n" + canonical).hexdigest()


def is_void(fold: ReplyFold) -> bool:
    """Tell whether a reply ended without a token and without a terminal: its key may be freed."""
    end = fold.end
    return end is not None and end.terminal is None and fold.accepted_count == 0


@dataclass(slots=True, kw_only=True)
class Held:
    """The claim that holds a scope now."""

    claim: KeyClaimed
    since_ms: int
    """Append time."""
    done: KeyDone | None = None
    """How its reply ended, once somebody has noted it."""


class ClaimBook:
    """Claims of one partition of `idempotency.v1`, in log order; mutated by `apply` only.

    A nonce is judged where it lands first and never again: a second landing of a claim that lost
    or was released changes nothing. Forgets what is older than 24 hours, by append times.
    """

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._won: dict[str, bool] = {}
        """Verdict by nonce."""
        self._order: deque[tuple[int, str, str]] = deque()
        """Append time, scope and nonce of every claim kept."""
        self._now_ms = 0

    def __len__(self) -> int:
        return len(self._order)

    def held(self, scope: str) -> Held | None:
        """Return who holds a scope, as of the newest record."""
        return self._held.get(scope)

    def verdict(self, nonce: str) -> bool | None:
        """Return whether a claim won; None where it has not landed."""
        return self._won.get(nonce)

    def apply(self, record: IdempotencyRecord, append_time_ms: int) -> None:
        """Take the next record of the partition."""
        self._now_ms = max(self._now_ms, append_time_ms)  # brokers' clocks may differ a little
        self._forget_old()
        if record.claimed is not None:
            if self._now_ms - append_time_ms < limits.IDEMPOTENCY_MS:  # else forgotten, read again
                self._claim(record.claimed)
        elif record.released is not None:
            self._release(record.released)
        elif record.done is not None:
            self._finish(record.done)

    def _claim(self, claim: KeyClaimed) -> None:
        if claim.nonce in self._won:
            return
        won = self._won[claim.nonce] = claim.scope not in self._held
        self._order.append((self._now_ms, claim.scope, claim.nonce))
        if won:
            self._held[claim.scope] = Held(claim=claim, since_ms=self._now_ms)

    def _release(self, released: KeyReleased) -> None:
        held = self._held.get(released.scope)
        if held is not None and held.claim.nonce == released.nonce and held.done is None:
            del self._held[released.scope]

    def _finish(self, done: KeyDone) -> None:
        held = self._held.get(done.scope)
        if held is not None and held.claim.nonce == done.nonce and held.done is None:
            held.done = done

    def _forget_old(self) -> None:
        while self._order and self._now_ms - self._order[0][0] >= limits.IDEMPOTENCY_MS:
            _, scope, nonce = self._order.popleft()
            del self._won[nonce]
            held = self._held.get(scope)
            if held is not None and held.claim.nonce == nonce:
                del self._held[scope]
