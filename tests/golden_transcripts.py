"""Golden transcripts: what a reply's tokens become in each dialect, kept to the byte.

`tests/golden/<situation>.json` holds a situation (tokens, stops, what its header says) and, for
each dialect that can show it, all events and the body. After a wanted change of what clients see,
`python -m tests.golden_transcripts` renders them anew from the situations; the diff is the review.
"""

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from schemas.assembler import Assembler
from schemas.replies import (
    ChoiceTokens,
    StageTimes,
    Stop,
    StopReason,
    Terminal,
    TokenLogprob,
    TopLogprob,
)
from schemas.requests import Dialect, ReplyHeader
from tests.assembler_cases import HEADERS, REPLY_IDS, sign

FOLDER = Path(__file__).parent / "golden"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """One situation in one dialect."""

    situation: str
    dialect: Dialect
    stream: tuple[bytes, ...]
    """By event."""
    body: bytes | None
    """None where the reply fails."""

    @property
    def name(self) -> str:
        """What tests call it."""
        return f"{self.situation}-{self.dialect.value}"


@cache
def transcripts() -> tuple[Transcript, ...]:
    """Return all of them as they are kept."""
    return tuple(
        Transcript(
            situation=path.stem,
            dialect=Dialect(dialect),
            stream=tuple(event.encode() for event in kept["events"]),
            body=kept["body"].encode() if kept["body"] else None,
        )
        for path in sorted(FOLDER.glob("*.json"))
        for dialect, kept in json.loads(path.read_text())["replies"].items()
    )


def rendered() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield each file with what it should hold."""
    for path in sorted(FOLDER.glob("*.json")):
        situation = json.loads(path.read_text())
        replies = {
            dialect: _reply(situation, replace(HEADERS[Dialect(dialect)], **situation["header"]))
            for dialect in situation["replies"]
        }
        yield path, situation | {"replies": replies}


def text_of(situation: dict[str, Any]) -> str:
    """Return a file's text."""
    return json.dumps(situation, indent=1, ensure_ascii=False) + "\n"


def _reply(situation: dict[str, Any], header: ReplyHeader) -> dict[str, Any]:
    pieces = [
        text.encode() if isinstance(text, str) else bytes(text) for text in situation["tokens"]
    ]

    class Pieces:
        """Token i is the situation's i-th piece; an empty one shows nothing, as an end does."""

        def __init__(self) -> None:
            self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

        def step(self, token_id: int) -> str:
            """Return the characters that this token completes."""
            return self._decoder.decode(pieces[token_id])

    def made() -> Assembler:
        return Assembler(
            replace(header, stop=tuple(header.stop)),
            REPLY_IDS[header.dialect],
            Pieces,
            sign=sign,
            token_text=pieces.__getitem__,
            text_of=lambda token_ids: "".join(map(Pieces().step, token_ids)),
        )

    reply, fed = made(), list[tuple[int, int, list[TokenLogprob] | None]]()
    cached_tokens = situation.get("cached_tokens")
    events = list(reply.opening(cached_tokens))
    choices = situation.get("choices") or [0] * len(pieces)
    for token_id, choice in enumerate(choices):
        logprobs = None
        if header.logprobs is not None:
            top = tuple(
                TopLogprob(token_id=near, logprob=-0.25 - near)
                for near in range(min(header.logprobs, len(pieces)))
            )
            logprobs = [TokenLogprob(logprob=-0.5, top=top)]
        events += reply.feed(choice, [token_id], logprobs)
        fed.append((choice, token_id, logprobs))
    if situation.get("error"):
        events.append(reply.error_event(*situation["error"]))
        return {"events": [event.payload.decode() for event in events], "body": None}
    stops = [
        Stop(reason=StopReason(stop["reason"]), stop_sequence=stop.get("stop_sequence"))
        for stop in situation["stops"]
    ]
    events += reply.finish(tuple(stops))
    body = msgspec.json.encode(reply.body())
    whole = made().whole(_terminal(tuple(stops), fed), cached_tokens)
    assert msgspec.json.encode(whole) == body
    return {"events": [event.payload.decode() for event in events], "body": body.decode()}


def _terminal(
    stops: tuple[Stop, ...], fed: list[tuple[int, int, list[TokenLogprob] | None]]
) -> Terminal:
    """Return the end of a reply of these tokens."""
    return Terminal(
        stops=stops,
        stages=StageTimes(taken_ms=1, started_ms=1, first_token_ms=1, finished_ms=1),
        tokens=tuple(
            ChoiceTokens(
                segment=0,
                choice=choice,
                token_ids=tuple(token_id for of, token_id, _ in fed if of == choice),
                logprobs=tuple(
                    number for of, _, found in fed if of == choice for number in found or ()
                )
                or None,
            )
            for choice in range(len(stops))
        ),
    )


if __name__ == "__main__":
    for file, content in rendered():
        file.write_text(text_of(content))
