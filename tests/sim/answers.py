"""What clients must have been told, by the log, and what they were (I9, I15).

Owns the expected events and bodies of each reply, made once for all its clients. Pure; called by
`verdict.py` when a run is over.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gateway.reader import Asked
from schemas.assembler import Assembler
from schemas.ids import RequestId, show_reply_id
from tests.assembler_cases import ByteDecoder
from tests.sim.claim_judge import ClaimJudge
from tests.sim.clients import Client, Visit
from tests.sim.gateways import LOCATOR_KEY
from tests.sim.judge import Judge

UNKNOWN = 404
REUSED = 422


@dataclass(frozen=True, slots=True)
class Expected:
    """All that a reply comes to."""

    payloads: Sequence[bytes]
    body: bytes | None
    """None where it has no terminal."""
    wrong_cursor: str | None


class Answers:
    """Judges what clients were sent."""

    def __init__(self, judge: Judge, claims: ClaimJudge) -> None:
        self._judge = judge
        self._claims = claims
        self._expected: dict[str, Expected] = {}

    def wrong(self, client: Client) -> str | None:
        """Return what is wrong with what a client was sent, added up over its visits."""
        wrong = self._wrong_refusal(client)
        if wrong is not None:
            return wrong
        fed = [visit for visit in client.visits if _was_fed(client, visit)]
        requests = {visit.request.request_id: visit.request for visit in fed if visit.request}
        if len(requests) > 1:
            return f"was sent parts of {sorted(requests)}"
        if not requests:
            return "got a clean end and nothing else" if client.answer == "complete" else None
        ((name, request),) = requests.items()
        expected = self._expect(name, request)
        if expected.wrong_cursor is not None:
            return expected.wrong_cursor
        if client.question.key is not None:
            told = self._claims.by_request[name].claim.fingerprint
            if told != client.question.fingerprint:
                return f"asked {client.question.fingerprint}, was sent the reply to {told}"
        if not client.stream:
            return _wrong_bodies(client, expected)
        first = [frame for visit in client.told() for frame in visit.frames]
        wrong = _wrong_events(first, expected, whole=client.answer == "complete")
        for visit in client.visits:
            if wrong is None and visit.again:
                whole = visit.answer == "complete"
                wrong = _wrong_events(visit.frames, expected, whole=whole)
        return wrong

    def _wrong_refusal(self, client: Client) -> str | None:
        for visit in client.visits:
            if visit.status == UNKNOWN and visit.answer == "refused":
                return f"did not find the reply that it has {visit.after or visit.by_id} of"
            if visit.status == REUSED and not self._holds_other(client):
                return "was told that its key holds another body, and none does"
        return None

    def _holds_other(self, client: Client) -> bool:
        question = client.question
        return any(
            judged.won
            and judged.claim.scope == question.scope
            and judged.claim.fingerprint != question.fingerprint
            for judged in self._claims.claims.values()
        )

    def _expect(self, name: str, request: Asked) -> Expected:
        expected = self._expected.get(name)
        if expected is None:
            expected = self._expected[name] = self._make(name, request)
        return expected

    def _make(self, name: str, request: Asked) -> Expected:
        reply = self._judge.replies.get(name)
        header = reply.first.header if reply is not None and reply.first else request.header
        identity = request.identity
        reply_id = show_reply_id(
            header.dialect.value,
            request.locator,
            RequestId(name),
            identity.org,
            identity.workspace,
            LOCATOR_KEY,
        )
        assembler = Assembler(header, reply_id, ByteDecoder)
        tokens, choices = ([], []) if reply is None else (reply.tokens, reply.choices)
        terminal = reply.terminal.terminal if reply is not None and reply.terminal else None
        cached_tokens = None if reply is None else reply.cached
        events = [(0, event) for event in assembler.opening(cached_tokens)]
        for count, (token, choice) in enumerate(zip(tokens, choices, strict=True), 1):
            events.extend((count, event) for event in assembler.feed(choice, (token,)))
        if terminal is not None:
            events.extend((len(tokens), event) for event in assembler.finish(terminal.stops))
        wrong_cursor = None
        for count, event in events:
            if int(event.cursor.partition("-")[0]) != count:
                wrong_cursor = f"cursor {event.cursor} stands after {count} tokens"
        return Expected(
            payloads=[event.payload for _, event in events],
            body=None if terminal is None else msgspec.json.encode(assembler.body()),
            wrong_cursor=wrong_cursor,
        )


def _was_fed(client: Client, visit: Visit) -> bool:
    return bool(visit.frames if client.stream else visit.body)


def _wrong_events(sent: list[bytes], expected: Expected, *, whole: bool) -> str | None:
    if sent != expected.payloads[: len(sent)]:
        return f"was sent {sent}, expected {expected.payloads}"
    if not whole:
        return None
    if expected.body is None:
        return "got a clean end, the log has no terminal"
    if len(sent) != len(expected.payloads):
        return f"got {len(sent)} events of {len(expected.payloads)}"
    return None


def _wrong_bodies(client: Client, expected: Expected) -> str | None:
    for visit in client.visits:
        body = b"".join(visit.body)
        if visit.answer == "complete" and body != expected.body:
            return f"got {body!r}, expected {expected.body!r}"
    return None
