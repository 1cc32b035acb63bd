"""What the assembler's tests share: byte tokens, an engine's stop check, headers, an SSE reader."""

import codecs
import json
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from schemas.assembler import Assembler, SseEvent, TokenDecoder
from schemas.replies import Stop, StopReason
from schemas.requests import Dialect, ReplyHeader

SPECIAL_TOKEN = 256
"""Releases no text, as an end-of-sequence token does."""

ANTHROPIC = ReplyHeader(
    dialect=Dialect.ANTHROPIC,
    dialect_version="2026-10-21",
    stream=True,
    include_usage=False,
    model_shown="tiny",
    stop=(),
    prompt_tokens=25,
    max_tokens=100,
    clipped=False,
    created_ms=1_700_000_000_123,
)
OPENAI = replace(ANTHROPIC, dialect=Dialect.OPENAI, dialect_version="v1", include_usage=True)
COMPLETIONS = replace(OPENAI, dialect=Dialect.COMPLETIONS)
RESPONSES = replace(OPENAI, dialect=Dialect.RESPONSES, include_usage=False)
HEADERS = {header.dialect: header for header in (ANTHROPIC, OPENAI, COMPLETIONS, RESPONSES)}
REPLY_IDS = {
    Dialect.ANTHROPIC: "msg_1",
    Dialect.OPENAI: "chatcmpl-1",
    Dialect.COMPLETIONS: "cmpl-1",
    Dialect.RESPONSES: "resp_1",
}
END = Stop(reason=StopReason.END)


PIECES = ("aa", "ab", "ba", "abaab", "bé", "🙂a\n")
"""Tokens of several characters, numbered from 257."""


class ByteDecoder:
    """Tokens are bytes or pieces; a character is released by its last byte."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def step(self, token_id: int) -> str:
        """Return the characters that this token completes."""
        if token_id == SPECIAL_TOKEN:
            return ""
        return self._decoder.decode(token_bytes(token_id))


def token_bytes(token_id: int) -> bytes:
    """Return what a token stands for."""
    if token_id == SPECIAL_TOKEN:
        return b"<end>"
    return bytes([token_id]) if token_id < 256 else PIECES[token_id - 257].encode()


def sign(thinking: str) -> str:
    """Return a signature that tests can read."""
    return f"signed {len(thinking)}"


def assembler(header: ReplyHeader, decoder: Callable[[], TokenDecoder] = ByteDecoder) -> Assembler:
    """Return an assembler, of byte tokens unless told otherwise."""
    return Assembler(header, REPLY_IDS[header.dialect], decoder, sign=sign, token_text=token_bytes)


def token_ids(text: str) -> list[int]:
    """Return byte tokens."""
    return list(text.encode())


def run_whole(
    header: ReplyHeader, runs: Sequence[Sequence[int]], stop: Stop = END
) -> tuple[list[SseEvent], dict[str, object]]:
    """Return all events and the body of a reply whose tokens come in these runs."""
    reply = assembler(header)
    events = list(reply.opening())
    for run in runs:
        events.extend(reply.feed(0, run))
    events.extend(reply.finish((stop,)))
    return events, decoded(reply.body())


def decoded(body: dict[str, object]) -> dict[str, object]:
    """Return a body as a client reads it."""
    read = json.loads(msgspec.json.encode(body))
    assert isinstance(read, dict)
    return read


def engine_stop(
    ids: Sequence[int], stops: Sequence[str], min_tokens: int
) -> tuple[list[int], Stop, str]:
    """Return the tokens that an engine keeps, why it stopped, and its text (vLLM's stop check)."""
    decoder, text = ByteDecoder(), ""
    for index, token_id in enumerate(ids):
        new = decoder.step(token_id)
        text += new
        if not new or index + 1 <= min_tokens:
            continue
        found = [
            (text.find(stop, max(0, len(text) - len(new) - len(stop) + 1)), stop) for stop in stops
        ]
        ends = [(at + len(stop), at, stop) for at, stop in found if at != -1]
        if ends:
            _, at, stop = min(ends, key=lambda match: match[0])
            ended = Stop(reason=StopReason.STOP_SEQUENCE, stop_sequence=stop)
            return list(ids[: index + 1]), ended, text[:at]
    return list(ids), END, text


def data_of(event: SseEvent) -> dict[str, object]:
    """Return the JSON of an event."""
    lines = event.payload.decode().splitlines()
    loaded = json.loads(next(line for line in lines if line.startswith("data: "))[6:])
    assert isinstance(loaded, dict)
    return loaded


def streamed_text(events: Iterable[SseEvent]) -> str:
    """Return the text of a stream, in either dialect."""
    parts = []
    for event in events:
        if b"data: [DONE]" in event.payload:
            continue
        data = data_of(event)
        delta = data.get("delta")
        if data.get("type") == "content_block_delta" and isinstance(delta, dict):
            parts.append(delta["text"])
        choices = data.get("choices")
        if isinstance(choices, list) and choices:
            parts.append(choices[0]["delta"].get("content") or "")
    return "".join(parts)


def body_text(body: dict[str, object]) -> str:
    """Return the text of a body, in either dialect."""
    content, choices = body.get("content"), body.get("choices")
    if isinstance(content, list):
        return "".join(block["text"] for block in content)
    assert isinstance(choices, list)
    text = choices[0]["message"]["content"]
    assert isinstance(text, str)
    return text
