"""What `idempotency.v1` holds: who claimed a key, what became of it, and who resumed a reply.

Facts only; which claim wins is decided by `gateway/idempotency.py`, from the order of the log
alone (design rule 6.8). A claim never holds the body of its request.
"""

from msgspec import Struct

from schemas.ids import Locator


class KeyClaimed(Struct, frozen=True, kw_only=True):
    """A gateway wants to run the request of a key, under ids that are durable from here on."""

    scope: str
    """SHA-256 of org, workspace and key, in hex."""
    nonce: str
    """Names this claim; judged where it lands first."""
    fingerprint: str
    """SHA-256 of method, path, version and canonical body, in hex."""
    request_id: str
    locator: Locator
    lane: int
    seed: int
    created_ms: int
    admit_by_ms: int
    deadline_ms: int
    gateway: str
    """Incarnation of the gateway that claims."""
    key_id: str
    """API key that pays, whichever key of the org a retry comes with."""
    model_version: str


class KeyReleased(Struct, frozen=True, kw_only=True):
    """The claim's reply ended without a token, so that the key is free again."""

    scope: str
    nonce: str


class KeyDone(Struct, frozen=True, kw_only=True):
    """The claim's reply ended at this offset of its reply partition. A cache: replays are faster
    with it."""

    scope: str
    nonce: str
    end_offset: int
    cached_tokens: int | None = None
    """As the reply's first token told; the end does not repeat it."""


class ReplyResumed(Struct, frozen=True, kw_only=True):
    """A client follows this reply at another gateway than its own, which must not give it up."""

    request_id: str
    gateway: str


class IdempotencyRecord(Struct, frozen=True, kw_only=True):
    """One record of `idempotency.v1`; exactly one field is set."""

    claimed: KeyClaimed | None = None
    released: KeyReleased | None = None
    done: KeyDone | None = None
    resumed: ReplyResumed | None = None


def record_of(fact: KeyClaimed | KeyReleased | KeyDone | ReplyResumed) -> IdempotencyRecord:
    """Wrap one fact as a record."""
    match fact:
        case KeyClaimed():
            return IdempotencyRecord(claimed=fact)
        case KeyReleased():
            return IdempotencyRecord(released=fact)
        case KeyDone():
            return IdempotencyRecord(done=fact)
        case ReplyResumed():
            return IdempotencyRecord(resumed=fact)
