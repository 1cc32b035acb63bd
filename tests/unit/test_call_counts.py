"""How many calls a token costs on the hot path, counted by the interpreter's profiling hook.

Counts do not depend on the machine. The bounds stand a little above what they are; whoever raises
one says why.
"""

import asyncio
import sys
from collections.abc import Callable
from types import FrameType

from msgspec.structs import replace

from engine_workers.echoes import Echoes
from engine_workers.outbox import Outbox
from gateway.bodies import decode_json
from gateway.mailbox import Chunk, Mailbox, accept
from schemas.assembler import Assembler
from schemas.codec import decode, encode
from schemas.dialects import openai
from schemas.fold import ReplyFold
from schemas.replies import ReplyRecord, entry_of, fact_of
from schemas.topics import REPLIES
from tests.builders import REQUEST_ID, delta, header, request, start
from tests.worker_harness import make_bench

TOKENS = 64
ATTEMPT = REQUEST_ID
# Calls per token.
READ_CALLS_MAX = 40
SHOW_CALLS_MAX = 23
SHOW_PART_CALLS_MAX = 60
WRITE_CALLS_MAX = 45
# Calls per request.
PARSE_CALLS_MAX = 150
EVENT_CALLS_MAX = 45


class Letters:
    """A decoder that says one letter for every token."""

    def step(self, token_id: int) -> str:
        """Return the text of a token."""
        return "a"


def calls(work: Callable[[], object]) -> int:
    """Return how many functions, Python's and C's, a piece of work calls."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    work()  # once before: caches are warm on the hot path
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def records(tokens_each: int = 1) -> list[bytes]:
    """Return one record per token of one reply, its start left out."""
    return [
        encode(ReplyRecord(entries=(entry_of(delta(index, 7, attempt=ATTEMPT)),)))
        for index in range(0, TOKENS, tokens_each)
    ]


def test_reading_and_folding_a_token() -> None:
    """A gateway decodes, folds and mails a token in few calls."""
    values = records()

    def work() -> None:
        fold, mailbox = ReplyFold(), Mailbox()
        accept(fold, start(ATTEMPT), 0)
        for offset, value in enumerate(values):
            for entry in decode(value, ReplyRecord).entries:
                mailbox.put(accept(fold, fact_of(entry), 0), offset)
        assert len(mailbox.take()) == TOKENS

    assert calls(work) / TOKENS <= READ_CALLS_MAX


def test_showing_a_token() -> None:
    """The assembler makes a token's event in few calls, in both dialects alike."""

    def work() -> None:
        assembler = Assembler(header(), "chatcmpl-1", Letters)
        assembler.opening()
        for _ in range(TOKENS):
            chunk = Chunk(choice=0, token_ids=(7,), cached_tokens=None, stop=None)
            (event,) = assembler.feed(chunk.choice, chunk.token_ids)
            assert event.payload

    assert calls(work) / TOKENS <= SHOW_CALLS_MAX


def test_showing_a_token_of_a_call() -> None:
    """A piece of a tool call's arguments costs little more than a piece of text."""

    class Arguments:
        """A decoder that opens a call, then says one letter of a string for every token."""

        def step(self, token_id: int) -> str:
            """Return the text of a token."""
            return "a" if token_id else '<tool_call>{"name": "f", "arguments": {"a": "'

    def work() -> None:
        assembler = Assembler(replace(header(), tool_parser="hermes"), "chatcmpl-1", Arguments)
        assembler.opening()
        assembler.feed(0, (0,))
        for _ in range(TOKENS):
            (event,) = assembler.feed(0, (7,))
            assert event.payload

    assert calls(work) / TOKENS <= SHOW_PART_CALLS_MAX


def test_writing_the_tokens_of_a_step() -> None:
    """A worker writes a step of many tokens as one record, in few calls a token."""
    facts = [delta(3, 7, attempt=ATTEMPT) for _ in range(TOKENS)]

    def work() -> None:
        encode(ReplyRecord(entries=tuple(entry_of(fact) for fact in facts)))

    assert calls(work) / TOKENS <= WRITE_CALLS_MAX


def test_a_step_is_one_record() -> None:
    """Whatever was put before the outbox turns goes out as one record per partition."""

    async def run() -> tuple[int, int]:
        bench = make_bench()
        outbox = Outbox(bench.broker.writer("w"), lambda facts, error: None, Echoes())
        for number in range(TOKENS):
            outbox.put(number % 2, delta(0, 7, request_id=f"id-{number}"))
        await outbox.run_once()
        return len(bench.read(REPLIES, 0)), len(bench.read(REPLIES, 1))

    assert asyncio.run(run()) == (1, 1)


def test_reading_a_request() -> None:
    """A small request is read in few calls: absent members cost one look-up each."""
    body = (
        b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":16,"stream":false}'
    )

    def work() -> None:
        assert openai.parse(decode_json(body), "v1").max_tokens == 16

    assert calls(work) <= PARSE_CALLS_MAX


def test_writing_a_request() -> None:
    """Its event is written in fewer calls than it has members and tokens."""
    event = replace(request(), prompt_token_ids=tuple(range(300, 300 + TOKENS)))
    assert calls(lambda: encode(event)) <= EVENT_CALLS_MAX
