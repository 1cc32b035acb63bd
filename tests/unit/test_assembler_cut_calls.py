"""Replies that are cut inside a call: the call as far as it came, and never its markup as text."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.cursor import Cursor, rest_of
from schemas.replies import Stop, StopReason
from schemas.requests import Dialect, ReplyHeader
from tests.assembler_cases import ANTHROPIC, OPENAI, RESPONSES, run_whole, token_ids
from tests.sdk_streams import READERS
from tests.unit.test_assembler_splitter import Said, parts_of, said

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Ulm", "days": 3}}\n</tool_call>'
BARE = '{"name": "get_weather", "parameters": {"city": "Ulm", "days": 3}}'
ARGUMENTS = '{"city": "Ulm", "days": 3}'
FORCED = {
    "hermes": ["", "hermes", CALL],
    "hermes, several": ["", "hermes", f"{CALL}\n{CALL}"],
    "hermes, thinking": ["<think>\nhm\n</think>\n\n", "hermes", CALL],
    "llama": ["", "llama3_json", BARE],
    "llama, several": ["", "llama3_json", f"{BARE}; {BARE}"],
    "llama, with its tag": ["", "llama3_json", f"<|python_tag|>{BARE}"],
    "llama, thinking": ["<think>\nhm\n</think>\n\n", "llama3_json", BARE],
}
CUTS = [
    Stop(reason=StopReason.LENGTH),
    Stop(reason=StopReason.STOP_SEQUENCE, stop_sequence="unseen"),
    Stop(reason=StopReason.REFUSAL),
]


@pytest.mark.parametrize("name", FORCED)
@pytest.mark.parametrize("header", [ANTHROPIC, OPENAI, RESPONSES], ids=lambda h: h.dialect.value)
def test_a_forced_call_that_is_cut_anywhere_shows_calls_and_nothing_else(
    header: ReplyHeader, name: str
) -> None:
    """At every cut: whole calls, then the open one from its name on, and no text."""
    thought, form, calls = FORCED[name]
    header = header_of(header, thought, form)
    for place in range(len(calls) + 1):
        written = calls[:place]
        _, body = run_whole(header, [token_ids(thought + written)], CUTS[place % len(CUTS)])
        texts, shown = content_of(header.dialect, body)
        assert not texts, written
        assert len(shown) == written.count('"get_weather"'), written
        whole = written.count(ARGUMENTS)
        for arguments in shown[:whole]:
            assert arguments == json.loads(ARGUMENTS), written
        for arguments in shown[whole:]:
            assert arguments is None or arguments.items() <= json.loads(ARGUMENTS).items(), written


@pytest.mark.parametrize("name", ["hermes", "llama, with its tag"])
@pytest.mark.parametrize("header", [ANTHROPIC, OPENAI, RESPONSES], ids=lambda h: h.dialect.value)
def test_a_cut_call_reads_the_same_streamed_whole_and_resumed(
    header: ReplyHeader, name: str
) -> None:
    """The SDK's sum of the stream is the body, and after each cursor the rest comes."""
    thought, form, calls = FORCED[name]
    header, reader = header_of(header, thought, form), READERS[header.dialect]
    for place in range(0, calls.index('"city"') + 2, 3):
        events, body = run_whole(header, [token_ids(calls[:place])], CUTS[0])
        payloads = [event.payload for event in events]
        assert reader.stream(payloads) == reader.body(json.dumps(body).encode())
        for at, event in enumerate(events):
            tokens, _, count = event.cursor.partition("-")
            assert rest_of(tuple(events), Cursor(int(tokens), int(count))) == payloads[at + 1 :]


def header_of(header: ReplyHeader, thought: str, form: str) -> ReplyHeader:
    """Return a header of replies in a form, with thoughts where there are some."""
    reasoning = "think" if thought else None
    return replace(header, tool_parser=form, reasoning_parser=reasoning, stop=("unseen",))


def content_of(dialect: Dialect, body: Any) -> tuple[list[str], list[Any]]:
    """Return texts and arguments of a body; None for arguments that are not whole JSON."""
    if dialect is Dialect.ANTHROPIC:
        blocks = body["content"]
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        return texts, [block["input"] for block in blocks if block["type"] == "tool_use"]
    if dialect is Dialect.RESPONSES:
        items = body["output"]
        calls = [item for item in items if item["type"] == "function_call"]
        texts = [json.dumps(item) for item in items if item["type"] == "message"]
        return texts, [loaded(call["arguments"]) for call in calls]
    message = body["choices"][0]["message"]
    texts = [message["content"]] if message["content"] else []
    calls = message.get("tool_calls", [])
    return texts, [loaded(call["function"]["arguments"]) for call in calls]


def loaded(arguments: str) -> Any:
    """Return the value of a JSON text, or None."""
    try:
        return json.loads(arguments)
    except ValueError:
        return None


WHOLE: list[Said] = [("call", "0", "get_weather", ARGUMENTS), ("end",)]
BEFORE: list[Said] = [("text", "see")]
AUTO: list[tuple[str, str, str, list[Said]]] = [
    ("nothing", "hermes", "", []),
    ("prose", "hermes", "just <b>", [("text", "just <b>")]),
    ("prose that goes on differently", "hermes", "<tool kit", [("text", "<tool kit")]),
    ("a beginning first in the reply", "hermes", " <tool_c", []),
    ("a beginning behind a call", "hermes", f"{CALL}\n<tool_c", WHOLE),
    ("a beginning behind text", "hermes", "see <tool_c", [("text", "see <tool_c")]),
    ("a beginning behind no call", "hermes", "<tool_call>x<too", [("text", "<tool_call>x<too")]),
    ("the tag", "hermes", "see <tool_call>", BEFORE),
    ("the tag and blanks", "hermes", "see <tool_call>\n ", BEFORE),
    ("no call after all", "hermes", "see <tool_call>x", [("text", "see <tool_call>x")]),
    ("in the name", "hermes", 'see <tool_call>{"name": "f', BEFORE),
    ("behind the name", "hermes", '<tool_call>{"name": "f"', [("call", "0", "f", ""), ("cut",)]),
    (
        "before the arguments",
        "hermes",
        'see <tool_call>{"name": "f", "arguments": ',
        [*BEFORE, ("call", "0", "f", ""), ("cut",)],
    ),
    (
        "arguments first",
        "hermes",
        '<tool_call>{"arguments": {"a": 1}, "name": "f"',
        [("call", "0", "f", '{"a": 1}'), ("cut",)],
    ),
    ("arguments first, in the name", "hermes", '<tool_call>{"arguments": {}, "name": "f', []),
    (
        "a list",
        "hermes",
        '<tool_call>[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arg',
        [("call", "0", "f", '{"a": 1}'), ("cut",), ("call", "1", "g", ""), ("cut",)],
    ),
    ("arguments that are none", "hermes", '<tool_call>{"name": "f", "arguments": [1', []),
    ("a name that is none", "hermes", '<tool_call>{"name": "a b", ', []),
    ("the bare tag", "llama3_json", "<|python_", []),
    ("the bare tag behind text", "llama3_json", "see <|python_", [("text", "see <|python_")]),
    ("a bare brace", "llama3_json", " {", []),
    ("a bare key", "llama3_json", '{"na', []),
    ("a bare name", "llama3_json", '{"name": "f', []),
    ("a bare name, whole", "llama3_json", '{"name": "f"', [("call", "0", "f", ""), ("cut",)]),
    ("a second key", "llama3_json", '{"name": "f", "para', [("call", "0", "f", ""), ("cut",)]),
    ("data", "llama3_json", '{"title": "f', [("text", '{"title": "f')]),
    ("data with a name", "llama3_json", '{"name": "f", "age', [("text", '{"name": "f", "age')]),
    ("data with a long name", "llama3_json", '{"name": "Ann B', [("text", '{"name": "Ann B')]),
    ("a number for a name", "llama3_json", '{"name": 7', [("text", '{"name": 7')]),
]


@pytest.mark.parametrize(
    ("form", "text", "expected"), [case[1:] for case in AUTO], ids=[case[0] for case in AUTO]
)
def test_a_reply_of_text_and_calls_that_is_cut(form: str, text: str, expected: list[Said]) -> None:
    """What belongs to a call is not shown as text, what may be prose is, however it came."""
    for piece_chars in (1, 2, 3, 5, 1000):
        parts = parts_of(text, form, piece_chars=piece_chars, cut=True)
        assert said(parts) == expected


@pytest.mark.parametrize(("text", "expected"), [("<thi", []), ("<tool_c", []), ("<a", ["<a"])])
def test_a_cut_beginning_of_a_tag_where_a_thought_may_stand(text: str, expected: list[str]) -> None:
    """Half a tag first in the reply is no text, whichever tag it would have become."""
    said_texts = [each[1] for each in said(parts_of(text, "hermes", "think", cut=True))]
    assert said_texts == expected


def test_a_model_that_ended_its_turn_wrote_text() -> None:
    """What the model itself left unfinished is no call: it is shown to the letter."""
    for text in ("<tool_c", "<tool_call>", '<tool_call>{"name": "f"'):
        assert said(parts_of(text, "hermes")) == [("text", text)]
