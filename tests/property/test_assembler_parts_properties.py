"""Laws of replies that are more than text: thinking, tool calls, choices, log probabilities."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.cursor import Cursor, rest_of
from schemas.assembler import SseEvent
from schemas.assembler.parts import Part, Text, Thinking, ToolArguments, ToolCallBegin
from schemas.assembler.splitter import Splitter
from schemas.assembler.tag_text import BLANKS
from schemas.replies import Stop, StopReason, TokenLogprob, TopLogprob
from schemas.requests import ReplyHeader
from tests.assembler_cases import (
    ANTHROPIC,
    COMPLETIONS,
    OPENAI,
    RESPONSES,
    assembler,
    decoded,
    run_whole,
    token_ids,
)
from tests.sdk_streams import READERS

BOUNDED = settings(max_examples=120, deadline=None)
FEW = settings(max_examples=60, deadline=None)
PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "<", "<tool"),
        *('{"name": "f", "arguments": {', '{"name":"g","parameters":{"a":', '"a": 1', "}", "}}"),
        *('"b\\u00e9\\ud83d', '"', ", ", ": ", "[1, ", "]", "tru", "e", "-1", ".5", ";", "\\"),
        *("\n", "  ", "word", "é🙂", "\u2028", "{", '{"name": "Ann", "age": 7}'),
        '<tool_call>\n{"name": "f", "arguments": {"a": {"b": [1, null]}}}\n</tool_call>',
        '{"name": "f", "parameters": {"a": "x"}}',
    ]
)
TRIGGERS = st.sampled_from(["<tool_call>", "</tool_call>", "<|python_tag|>", "</think>", "; {"])
CALLS = st.builds(
    '{}{{"{}": "f", "{}": {{"a": "b"}}, "id": 1}}{}'.format,
    st.sampled_from(["", "<tool_call>\n", "<|python_tag|>"]),
    st.sampled_from(["name", "title", "type"]),
    st.sampled_from(["arguments", "parameters", "name"]),
    st.sampled_from(["", "\n</tool_call>", "; "]),
)


@st.composite
def spoiled_calls(draw: st.DrawFn) -> str:
    """Return a call with triggers, other calls and pieces in it, in the place of what was there."""
    text = draw(CALLS)
    for piece in draw(st.lists(TRIGGERS | CALLS | PIECES, min_size=1, max_size=4)):
        place = draw(st.integers(0, len(text)))
        text = text[:place] + piece + text[place + draw(st.integers(0, 3)) :]
    return text


WRITTEN = st.lists(PIECES, max_size=12).map("".join) | spoiled_calls()
TOOLS = st.sampled_from([None, "hermes", "llama3_json"])
THINKING = st.sampled_from([None, "think", "think_open"])
HEADERS = st.builds(
    lambda header, tools, thinking, shown, stop: replace(
        header,
        tool_parser=tools,
        reasoning_parser=thinking,
        reasoning_shown=shown,
        stop=stop,
    ),
    st.sampled_from([ANTHROPIC, OPENAI, RESPONSES]),
    TOOLS,
    THINKING,
    st.booleans(),
    st.sampled_from([(), ("}}",), ("\n", "rd")]),
)
STOPS = st.sampled_from([StopReason.END, StopReason.LENGTH, StopReason.REFUSAL])


def cut(ids: Sequence[int], seams: Sequence[int]) -> list[Sequence[int]]:
    """Cut tokens into runs."""
    places = sorted({min(seam, len(ids)) for seam in seams} | {0, len(ids)})
    return [ids[first:last] for first, last in pairwise(places)]


@BOUNDED
@given(HEADERS, WRITTEN, st.lists(st.integers(0, 200), max_size=6), STOPS)
def test_events_do_not_depend_on_how_records_were_cut(
    header: ReplyHeader, text: str, seams: list[int], reason: StopReason
) -> None:
    """One record or many: the same bytes with the same cursors, which rise, and the same body."""
    ids, stop = token_ids(text), Stop(reason=reason)
    whole = run_whole(header, [ids], stop)
    assert run_whole(header, cut(ids, seams), stop) == whole
    places = [tuple(map(int, event.cursor.split("-"))) for event in whole[0]]
    assert places == sorted(set(places))


@settings(max_examples=400, deadline=None)
@given(
    spoiled_calls(),
    st.integers(1, 40),
    st.sampled_from(["hermes", "llama3_json"]),
    st.sampled_from([None, "think"]),
    st.booleans(),
)
def test_parts_do_not_depend_on_how_the_text_was_cut(
    text: str, piece_chars: int, tools: str, thinking: str | None, ended: bool
) -> None:
    """Letter by letter, in pieces or at once: the same parts, also of a spoiled call, and of a
    reply that was ended inside one."""
    whole = _parts([text], tools, thinking, ended)
    assert _parts(list(text), tools, thinking, ended) == whole
    starts = range(0, len(text), piece_chars)
    pieces = [text[at : at + piece_chars] for at in starts]
    assert _parts(pieces, tools, thinking, ended) == whole


@settings(max_examples=40, deadline=None)
@given(HEADERS, WRITTEN, STOPS)
def test_whatever_the_model_writes_the_sdks_read_it_as_the_body(
    header: ReplyHeader, text: str, reason: StopReason
) -> None:
    """No text makes a stream that an SDK stumbles over, or that adds up to another message."""
    events, _ = run_whole(header, [token_ids(text)], Stop(reason=reason))
    reply = assembler(header)
    reply.opening()
    reply.feed(0, token_ids(text))
    reply.finish((Stop(reason=reason),))
    reader = READERS[header.dialect]
    body = _bytes(reply.body())
    assert reader.stream([event.payload for event in events]) == reader.body(body)


@FEW
@given(HEADERS, WRITTEN, st.integers(0, 60), st.integers(0, 4))
def test_resuming_after_any_cursor_gives_the_rest(
    header: ReplyHeader, text: str, tokens: int, count: int
) -> None:
    """What was sent and what is sent after a cursor are all events, each once."""
    events, _ = run_whole(header, [token_ids(text)])
    rest = rest_of(tuple(events), Cursor(tokens, count))
    sent = [
        event.payload
        for event in events
        if tuple(map(int, event.cursor.split("-"))) <= (tokens, count)
    ]
    assert sent + rest == [event.payload for event in events]


@BOUNDED
@given(WRITTEN, TOOLS, THINKING)
def test_nothing_but_tags_and_blanks_is_lost(
    text: str, tools: str | None, thinking: str | None
) -> None:
    """Where no call is shown every other character is; and none is shown out of its order."""
    splitter = Splitter(tool_parser=tools, reasoning_parser=thinking)
    parts = [part for character in text for part in splitter.push(character)] + splitter.end()
    shown = ""
    for part in parts:
        if isinstance(part, Text | Thinking | ToolArguments):
            shown += part.text
        elif isinstance(part, ToolCallBegin):
            shown += part.name
    if "<" not in text and "{" not in text:
        assert shown == (text.lstrip(BLANKS) if thinking == "think_open" else text)
    if thinking is None and not any(isinstance(part, ToolCallBegin) for part in parts):
        tag = "<|python_tag|>" if tools == "llama3_json" else ""
        assert _solid(shown.replace(tag, "")) == _solid(text.replace(tag, ""))
    letters = iter(text)
    if "\\u" not in text and '"arguments": "' not in text:
        assert all(character in letters for character in shown), "shown out of order"


@FEW
@given(
    st.sampled_from([OPENAI, COMPLETIONS]),
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab<é")), max_size=20),
    st.booleans(),
)
def test_choices_side_by_side_are_what_each_is_alone(
    header: ReplyHeader, drawn: list[tuple[int, str]], logprobs: bool
) -> None:
    """However their tokens interleave, a choice's text and numbers are its own."""
    header = replace(header, choices=3, tool_parser="hermes" if header is OPENAI else None)
    header = replace(header, logprobs=1 if logprobs else None)
    together = _fed(header, drawn)
    for choice in range(3):
        own = [(0, text) for index, text in drawn if index == choice]
        (alone,) = _fed(replace(header, choices=1), own)
        assert together[choice] | {"index": 0} == alone


@FEW
@given(st.sampled_from([OPENAI, COMPLETIONS, RESPONSES]), st.text(max_size=12), STOPS)
def test_texts_of_log_probabilities_add_up_to_the_text(
    header: ReplyHeader, text: str, reason: StopReason
) -> None:
    """The tokens whose numbers are shown make the text that is shown, byte by byte."""
    reply = assembler(replace(header, logprobs=0))
    events = list(reply.opening())
    text = text.encode("utf-8", "ignore").decode()
    for token_id in token_ids(text):
        events += reply.feed(0, [token_id], [TokenLogprob(logprob=-1.0)])
    events += reply.finish((Stop(reason=reason),))
    body = decoded(reply.body())
    if header is OPENAI:
        content = body["choices"][0]["logprobs"]["content"]  # type: ignore[index]
        assert bytes(byte for each in content for byte in each["bytes"]).decode() == text
    elif header is COMPLETIONS:
        numbers = body["choices"][0]["logprobs"]  # type: ignore[index]
        assert len(numbers["tokens"]) == len(text.encode())
        assert numbers["text_offset"] == sorted(numbers["text_offset"])
    elif text:
        part = body["output"][0]["content"][0]  # type: ignore[index]
        assert bytes(byte for each in part["logprobs"] for byte in each["bytes"]).decode() == text


def _parts(pieces: list[str], tools: str | None, thinking: str | None, ended: bool) -> list[Part]:
    """Return the parts of a text that comes in pieces, neighbours of one kind joined."""
    splitter = Splitter(tool_parser=tools, reasoning_parser=thinking)
    joined: list[Part] = []
    parts = [each for piece in pieces for each in splitter.push(piece)]
    for part in parts + splitter.end(cut=ended):
        if isinstance(part, Text | Thinking | ToolArguments) and joined:
            last = joined[-1]
            if isinstance(last, Text | Thinking | ToolArguments) and type(last) is type(part):
                part = replace(part, text=last.text + part.text)
                joined.pop()
        joined.append(part)
    return joined


def _solid(text: str) -> str:
    return "".join(text.split())


def _fed(header: ReplyHeader, drawn: list[tuple[int, str]]) -> list[dict[str, Any]]:
    reply = assembler(header)
    events: list[SseEvent] = list(reply.opening())
    for choice, text in drawn:
        ids = token_ids(text)
        top = (TopLogprob(token_id=97, logprob=-0.5),)
        logprobs = [TokenLogprob(logprob=-1.0, top=top) for _ in ids]
        events += reply.feed(choice, ids, logprobs if header.logprobs else None)
    reply.finish((Stop(reason=StopReason.END),) * header.choices)
    choices = decoded(reply.body())["choices"]
    assert isinstance(choices, list)
    for choice in choices:
        for call in choice.get("message", {}).get("tool_calls", ()):
            call.pop("id")
    return choices


def _bytes(body: dict[str, object]) -> bytes:
    return msgspec.json.encode(body)
