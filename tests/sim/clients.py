"""Simulated clients: what each one asks, how it behaves, and what it was told.

Owns their drawing and the memory of their visits. Runs nothing (`sessions.py`) and decides no
return (`crowd.py`).
"""

import random
import re
from dataclasses import dataclass, field, replace
from enum import StrEnum

from msgspec import structs

from gateway.idempotency import scope_of
from gateway.live_reply import LiveReply
from gateway.reader import Asked
from schemas.dialects.canonical import CanonicalMessage, CanonicalRequest
from schemas.ids import RequestId
from schemas.requests import Dialect, Identity
from tests.sim.options import Options
from tests.sim.platform import ALIAS, WORKSPACE

KEYS = 4
_REPLY_ID = re.compile(rb'"id":"((?:msg_|chatcmpl-)[0-9A-Za-z]+)"')


class Manner(StrEnum):
    """What a client can do about a connection that was lost."""

    PLAIN = "plain"
    """Nothing."""
    RESUMABLE = "resumable"
    """Ask for the rest by the reply's id."""
    KEYED = "keyed"
    """Send the same request again under its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked: one body, by one org, under one key where it has one."""

    canonical: CanonicalRequest
    prompt: tuple[int, ...]
    identity: Identity
    key: str | None = None
    at_s: float = 0.0

    @property
    def scope(self) -> str:
        """The scope of its key."""
        assert self.key is not None, "only keyed questions have a scope"
        return scope_of(self.identity.org, self.identity.workspace, self.key)

    @property
    def fingerprint(self) -> str:
        """What tells bodies apart: keyed questions differ in nothing else."""
        return f"{self.key}/{self.canonical.max_tokens}"


@dataclass(slots=True, kw_only=True)
class Visit:
    """One connection of a client to a gateway."""

    gateway: str
    request_id: RequestId
    by_id: str | None = None
    """The reply id that is asked for; None where the question itself is sent."""
    after: str | None = None
    """Last-Event-ID."""
    again: bool = False
    """All of it is asked for once more."""
    began_s: float = 0.0
    ended_s: float = 0.0
    """When its client left or had all."""
    answer: str | None = None
    """None while it waits: complete, error, refused, gone, reset."""
    status: int | None = None
    replayed: bool = False
    """The gateway said that it started nothing for this visit."""
    body: list[bytes] = field(default_factory=list)
    cut: bool = False
    """The connection broke in the middle of the last write."""
    reply: LiveReply | None = None

    @property
    def request(self) -> Asked | None:
        """The request whose reply it followed."""
        return None if self.reply is None else self.reply.request

    @property
    def frames(self) -> list[bytes]:
        """The whole events of the reply that it got: those with an id."""
        return numbered(self.body, cut=self.cut)


@dataclass(slots=True, kw_only=True)
class Client:
    """One client: what it asks, how it behaves, what it got."""

    index: int
    request_id: RequestId
    """Of its first request; each other one has a request id of its own."""
    manner: Manner
    question: Question
    at_s: float
    gateway: int
    gateways: int
    leaves_after_s: float | None
    leaves_after_sends: int | None
    leaves: int
    """So often it leaves before its reply is whole."""
    away_s: float
    cuts: bool
    """The connection breaks in the middle of a write."""
    cancels_after_s: float | None
    asks_again: bool
    """It wants to see everything once more when it is complete."""
    pause_s: float
    """It waits this long in every read."""
    visits: list[Visit] = field(default_factory=list)
    answer: str | None = None
    """The last word: None while there is more to come."""
    reply_id: str | None = None
    cancels_asked: int = 0

    @property
    def stream(self) -> bool:
        """Tell whether it reads events."""
        return self.question.canonical.stream

    def told(self) -> list[Visit]:
        """Return the visits that add up to its reply."""
        return [visit for visit in self.visits if not visit.again]

    def learn(self, visit: Visit) -> None:
        """Note the reply's id from what it was sent."""
        if self.reply_id is None and visit.body:
            match = _REPLY_ID.search(b"".join(visit.body))
            self.reply_id = match[1].decode() if match else None

    def last_event_id(self) -> str | None:
        """Return the id of the last event that it has."""
        for visit in reversed(self.told()):
            frames = visit.frames
            if frames:
                return cursor_of(frames[-1])
        return None


def draw_clients(options: Options) -> list[Client]:
    """Return the clients of a run, by time of arrival."""
    rng = random.Random(f"clients/{options.seed}")
    questions = [_question(options, rng, f"key-{index}") for index in range(KEYS)]
    clients = [_draw(options, rng, index, questions) for index in range(options.requests)]
    if options.only_clients is not None:
        clients = [client for client in clients if client.index in options.only_clients]
    return sorted(clients, key=lambda client: client.at_s)


def _draw(options: Options, rng: random.Random, index: int, questions: list[Question]) -> Client:
    leaves = options.has("disconnect") and rng.random() < 0.4
    slow = options.has("slow-client") and rng.random() < 0.4
    cancels = options.has("cancel") and rng.random() < 0.3
    question, manner = _question(options, rng, None), Manner.PLAIN
    at_s = question.at_s
    if rng.random() < options.keyed:
        manner, question = Manner.KEYED, rng.choice(questions)
        at_s = question.at_s if rng.random() < 0.5 else at_s
        if rng.random() < 0.12:
            question = _other_body(question)
    elif rng.random() < options.resumable:
        manner = Manner.RESUMABLE
    return Client(
        index=index,
        request_id=RequestId(f"{index:08x}-0000-4000-8000-{rng.getrandbits(48):012x}"),
        manner=manner,
        question=question,
        at_s=at_s,
        gateway=rng.randrange(options.gateways),
        gateways=options.gateways,
        leaves_after_s=rng.choice((0.0, 0.02, 0.3, 2.0)) if leaves and rng.random() < 0.5 else None,
        leaves_after_sends=rng.choice((1, 2, 4)) if leaves else None,
        leaves=rng.choice((1, 1, 2, 4)),
        away_s=rng.choice((0.0, 0.05, 0.4, 1.5, 5.0)),
        cuts=rng.random() < 0.5,
        cancels_after_s=rng.choice((0.0, 0.1, 1.0)) if cancels else None,
        asks_again=rng.random() < 0.15,
        pause_s=rng.choice((0.02, 0.2, 1.0, 5.0)) if slow else 0.0,
    )


def _question(options: Options, rng: random.Random, key: str | None) -> Question:
    dialect = rng.choice((Dialect.ANTHROPIC, Dialect.OPENAI))
    return Question(
        canonical=CanonicalRequest(
            dialect=dialect,
            choices=2 if dialect is Dialect.OPENAI and rng.random() < options.choices else 1,
            dialect_version="2023-06-01",
            model=ALIAS,
            messages=(CanonicalMessage(role="user", text="hi"),),
            max_tokens=rng.randint(1, options.max_tokens),
            stream=rng.random() < 0.8,
            include_usage=rng.random() < 0.5,
            stop=rng.choice(((), (), ("ab",), ("baa",), ("a", "é"))),
            min_tokens=rng.choice((0, 0, 1)),
            ignore_eos=rng.random() < 0.3,
        ),
        prompt=tuple(rng.randbytes(rng.choice((3, 8, 40)))),
        identity=Identity(org=f"org-{rng.randrange(5)}", workspace=WORKSPACE, key_id="key"),
        key=key,
        at_s=0.05 + rng.random() * options.arrival_s,
    )


def _other_body(question: Question) -> Question:
    longer = (question.canonical.max_tokens or 0) + 1
    return replace(question, canonical=structs.replace(question.canonical, max_tokens=longer))


def numbered(body: list[bytes], *, cut: bool = False) -> list[bytes]:
    """Return the events of a stream that belong to the reply: those with an id, less comments."""
    text = b"".join(body)
    if cut:
        text = text[: text.rfind(b"\n\n") + 2] if b"\n\n" in text else b""
    if b"\n:" in text or text[:1] == b":":
        text = b"".join(line for line in text.splitlines(keepends=True) if line[:1] != b":")
    frames = [frame.lstrip(b"\n") for frame in text.split(b"\n\n")]
    return [frame + b"\n\n" for frame in frames if frame.startswith(b"id: ") or b"\nid: " in frame]


def cursor_of(frame: bytes) -> str:
    """Return the id of an event."""
    at = 0 if frame.startswith(b"id: ") else frame.index(b"\nid: ") + 1
    return frame[at + 4 : frame.index(b"\n", at)].decode()
