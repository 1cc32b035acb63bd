"""Text to parts: thinking, answer, tool calls, in every form that models write."""

from collections.abc import Sequence

import pytest

from schemas.assembler.parts import (
    Part,
    Text,
    Thinking,
    ThinkingEnd,
    ToolArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from schemas.assembler.splitter import REASONING_PARSERS, TOOL_PARSERS, Splitter

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
Said = tuple[str, ...]


def parts_of(
    text: str,
    tools: str | None = None,
    thinking: str | None = None,
    piece_chars: int = 1,
    *,
    cut: bool = False,
) -> list[Part]:
    """Return the parts of a text that comes in pieces."""
    splitter = Splitter(tool_parser=tools, reasoning_parser=thinking)
    parts: list[Part] = []
    for start in range(0, len(text), piece_chars):
        parts += splitter.push(text[start : start + piece_chars])
    return parts + splitter.end(cut=cut)


def said(parts: Sequence[Part]) -> list[Said]:
    """Return parts in short form, neighbours of one kind put together."""
    short: list[Said] = []
    for part in parts:
        match part:
            case Text(text) | Thinking(text):
                kind = "text" if isinstance(part, Text) else "thinking"
                if short and short[-1][0] == kind:
                    text = short.pop()[1] + text
                short.append((kind, text))
            case ThinkingEnd():
                short.append(("thought",))
            case ToolCallBegin(index, name):
                short.append(("call", str(index), name, ""))
            case ToolArguments(index, text):
                kind, number, name, before = short.pop()
                assert (kind, number) == ("call", str(index))
                short.append((kind, number, name, before + text))
            case ToolCallEnd(index, complete):
                assert short[-1][:2] == ("call", str(index))
                short.append(("end" if complete else "cut",))
    return short


def check(
    text: str, expected: list[Said], tools: str | None = None, thinking: str | None = None
) -> None:
    """Check the parts of a text, however it is cut."""
    for piece_chars in (1, 2, 3, 5, 7, 1000):
        assert said(parts_of(text, tools, thinking, piece_chars)) == expected


ONE = [("call", "0", "f", '{"a": 1}'), ("end",)]
HERMES: list[tuple[str, str, list[Said]]] = [
    ("no tag", "just <b>text</b> ", [("text", "just <b>text</b> ")]),
    ("one call", CALL, ONE),
    ("blanks around", f"\n {CALL}\n\n", ONE),
    ("text before", f"Let me see.\n\n{CALL}", [("text", "Let me see."), *ONE]),
    ("text after", f"{CALL}\n\nDone. ", [*ONE, ("text", "Done. ")]),
    (
        "two calls",
        f'{CALL}\n<tool_call>\n{{"name": "g", "arguments": {{}}}}\n</tool_call>',
        [*ONE, ("call", "1", "g", "{}"), ("end",)],
    ),
    (
        "tight",
        '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>',
        [("call", "0", "f", '{"a":1}'), ("end",)],
    ),
    ("parameters", '<tool_call>{"name":"f","parameters":{}}', [("call", "0", "f", "{}"), ("end",)]),
    ("arguments first", '<tool_call>{"arguments":{"a": 1},"name":"f"}</tool_call>', ONE),
    (
        "other members",
        '<tool_call>{"id":[1],"name":"f","arguments":{"a": 1},"x":{"y":2}}</tool_call>!',
        [*ONE, ("text", "!")],
    ),
    ("no arguments", '<tool_call>{"name":"f"}</tool_call>', [("call", "0", "f", "{}"), ("end",)]),
    (
        "null arguments",
        '<tool_call>{"name":"f","arguments":null}</tool_call>',
        [("call", "0", "f", "{}"), ("end",)],
    ),
    (
        "arguments in a string",
        '<tool_call>{"name":"f","arguments":"{\\"a\\": 1}"}</tool_call>',
        ONE,
    ),
    (
        "a list",
        '<tool_call>[{"name":"f","arguments":{"a": 1}},{"name":"g"}]</tool_call>',
        [*ONE, ("call", "1", "g", "{}"), ("end",)],
    ),
    (
        "no closing bracket",
        '<tool_call>{"name":"f","arguments":{"a": 1}</tool_call>x',
        [*ONE, ("text", "x")],
    ),
    (
        "no closing tag",
        CALL.removesuffix("</tool_call>") + CALL,
        [*ONE, ("call", "1", "f", '{"a": 1}'), ("end",)],
    ),
    (
        "a tag in a string",
        '<tool_call>{"name":"f","arguments":{"a":"</tool_call>"}}</tool_call>',
        [("call", "0", "f", '{"a":"</tool_call>"}'), ("end",)],
    ),
    ("not JSON", "<tool_call>f(1)</tool_call>", [("text", "<tool_call>f(1)</tool_call>")]),
    ("not JSON, then a call", f"<tool_call>\nhm {CALL}", [("text", "<tool_call>\nhm"), *ONE]),
    ("blanks before no call", "a\n <tool_call>b", [("text", "a\n <tool_call>b")]),
    ("not an object", "<tool_call>7</tool_call>", [("text", "<tool_call>7</tool_call>")]),
    (
        "no name",
        '<tool_call>{"arguments":{}}</tool_call>',
        [("text", '<tool_call>{"arguments":{}}</tool_call>')],
    ),
    (
        "a name that is none",
        '<tool_call>{"name":"a b","arguments":{}}!',
        [("text", '<tool_call>{"name":"a b","arguments":{}}!')],
    ),
    (
        "arguments that are none",
        '<tool_call>{"name":"f","arguments":[1]}',
        [("text", '<tool_call>{"name":"f","arguments":[1]}')],
    ),
    (
        "a string that holds no object",
        '<tool_call>{"name":"f","arguments":"hi"}',
        [("text", '<tool_call>{"name":"f","arguments":"hi"}')],
    ),
    ("cut in the tag", "see <tool_c", [("text", "see <tool_c")]),
    ("cut in the name", 'see <tool_call>\n{"name": "f', [("text", 'see <tool_call>\n{"name": "f')]),
    (
        "cut in the arguments",
        '<tool_call>{"name":"f","arguments":{"a":"b',
        [("call", "0", "f", '{"a":"b'), ("cut",)],
    ),
    ("cut in the closing tag", CALL[:-5], ONE),
    (
        "broken arguments",
        '<tool_call>{"name":"f","arguments":{"a":True}}',
        [("call", "0", "f", '{"a":'), ("cut",), ("text", "True}}")],
    ),
    (
        "broken behind the arguments",
        '<tool_call>{"name":"f","arguments":{"a": 1},x}',
        [*ONE, ("text", ",x}")],
    ),
    ("blanks alone", " \n", [("text", " \n")]),
    ("less than a tag", "a < b <tool> <tool_cal> c", [("text", "a < b <tool> <tool_cal> c")]),
]


@pytest.mark.parametrize(
    ("text", "expected"), [case[1:] for case in HERMES], ids=[case[0] for case in HERMES]
)
def test_hermes_calls(text: str, expected: list[Said]) -> None:
    """Calls in tags are found; everything that is none stays text."""
    check(text, expected, tools="hermes")


BARE = '{"name": "f", "parameters": {"a": 1}}'
LLAMA: list[tuple[str, str, list[Said]]] = [
    ("bare", BARE, ONE),
    ("blanks before", "\n\n" + BARE, ONE),
    ("behind the tag", "<|python_tag|>" + BARE, ONE),
    ("text, then the tag", "Sure. <|python_tag|>" + BARE, [("text", "Sure."), *ONE]),
    ("two", f"{BARE}; {BARE}", [*ONE, ("call", "1", "f", '{"a": 1}'), ("end",)]),
    ("two by lines", f"{BARE}\n{BARE}\n", [*ONE, ("call", "1", "f", '{"a": 1}'), ("end",)]),
    ("arguments", '{"name":"f","arguments":{}}', [("call", "0", "f", "{}"), ("end",)]),
    ("with a type", '{"type":"function","name":"f","parameters":{"a": 1}}', ONE),
    ("text", "It is {here}.", [("text", "It is {here}.")]),
    ("text behind", f"{BARE} ok", [*ONE, ("text", "ok")]),
    ("data", '{"title": "x", "name": 2}', [("text", '{"title": "x", "name": 2}')]),
    ("data with a name", '{"name": "Ann", "age": 7} ', [("text", '{"name": "Ann", "age": 7} ')]),
    ("a name alone", '{"name": "Ann"}', [("text", '{"name": "Ann"}')]),
    ("not JSON", "{name}", [("text", "{name}")]),
    ("cut", '{"name": "f", "parameters": {"a"', [("call", "0", "f", '{"a"'), ("cut",)]),
    ("cut before", '{"name": "f"', [("text", '{"name": "f"')]),
    ("blanks alone", " \n", [("text", " \n")]),
    ("the tag and code", "<|python_tag|>f(1)", [("text", "f(1)")]),
    (
        "a call inside data",
        '{"title": "<|python_tag|>' + BARE,
        [("text", '{"title": "'), *ONE],
    ),
    (
        "a tag inside data",
        '<|python_tag|>{"n": {"a": <|python_tag|>"b"}}; {"c": 1}',
        [("text", '{"n": {"a":"b"}}; {"c": 1}')],
    ),
    (
        "data inside data",
        '<|python_tag|>{"n": "f", "a": "<|python_tag|>{"n": "f',
        [("text", '{"n": "f", "a": "{"n": "f')],
    ),
]


@pytest.mark.parametrize(
    ("text", "expected"), [case[1:] for case in LLAMA], ids=[case[0] for case in LLAMA]
)
def test_llama_calls(text: str, expected: list[Said]) -> None:
    """A reply that begins with a call's object is one; an object that is data stays text."""
    check(text, expected, tools="llama3_json")


THINKING: list[tuple[str, str, str, list[Said]]] = [
    (
        "closed",
        "think",
        "<think>\nhm\n</think>\n\nYes",
        [("thinking", "hm"), ("thought",), ("text", "Yes")],
    ),
    (
        "blanks inside",
        "think",
        "<think>a\n\nb</think>c",
        [("thinking", "a\n\nb"), ("thought",), ("text", "c")],
    ),
    ("blanks before", "think", "\n<think>a</think>", [("thinking", "a"), ("thought",)]),
    ("none", "think", " Yes <think>", [("text", " Yes <think>")]),
    ("empty", "think", "<think>\n\n</think>\n\nYes", [("text", "Yes")]),
    ("cut", "think", "<think>\na <", [("thinking", "a <"), ("thought",)]),
    ("cut in blanks", "think", "<think>\n ", []),
    ("cut in the tag", "think", "<thi", [("text", "<thi")]),
    (
        "opened by the prompt",
        "think_open",
        "hm\n</think>\nYes",
        [("thinking", "hm"), ("thought",), ("text", "Yes")],
    ),
    (
        "opened twice",
        "think_open",
        "\n<think>hm</think>Yes",
        [("thinking", "hm"), ("thought",), ("text", "Yes")],
    ),
    ("opened and cut", "think_open", "<thi", [("thinking", "<thi"), ("thought",)]),
    ("opened and nothing", "think_open", "\n", []),
]


@pytest.mark.parametrize(
    ("parser", "text", "expected"),
    [case[1:] for case in THINKING],
    ids=[case[0] for case in THINKING],
)
def test_thinking(parser: str, text: str, expected: list[Said]) -> None:
    """Thinking stands before the answer, without the blanks that its tags bring."""
    check(text, expected, thinking=parser)


def test_thinking_then_text_and_calls() -> None:
    """A tag inside the thinking is thinking; the calls come after it."""
    text = f"<think>\nI could <tool_call> it\n</think>\n\nSo:\n{CALL}"
    expected: list[Said] = [
        ("thinking", "I could <tool_call> it"),
        ("thought",),
        ("text", "So:"),
        *ONE,
    ]
    check(text, expected, thinking="think", tools="hermes")
    check(
        f"<think>a</think>\n\n{BARE}",
        [("thinking", "a"), ("thought",), *ONE],
        thinking="think",
        tools="llama3_json",
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"title": 1, "name": "f", "parameters": {}}',
        '{"title": "' + "x" * 600 + '", "name": "f", "parameters": {}}',
        '{"name": ' + " " * 600 + '"f", "parameters": {"a',
        '{"name": "f", "parameters": {"a": "' + "x" * 600,
    ],
)
@pytest.mark.parametrize("tools", ["hermes", "llama3_json"])
def test_long_pieces_are_read_as_short_ones(text: str, tools: str) -> None:
    """What a call is does not depend on how much of it came at once."""
    text = f"<tool_call>{text}" if tools == "hermes" else text
    whole = said(parts_of(text, tools, piece_chars=10_000))
    for piece_chars in (1, 2, 100):
        assert said(parts_of(text, tools, piece_chars=piece_chars)) == whole


@pytest.mark.parametrize("before", ["", "<tool_call>", "<|python_tag|>"])
@pytest.mark.parametrize("inside", ["<tool_call>", "<|python_tag|>", "</tool_call>", ";", "<"])
@pytest.mark.parametrize("key", ["name", "title"])
@pytest.mark.parametrize("tools", ["hermes", "llama3_json"])
def test_tags_inside_what_fails_to_be_a_call(
    before: str, inside: str, key: str, tools: str
) -> None:
    """A tag anywhere in a call, which may spoil it, means the same wherever the text is cut."""
    call = f'{before}{{"{key}": "f", "parameters": {{"a": "x"}}}}'
    for place in range(len(before), len(call) + 1):
        text = f"{call[:place]}{inside}{call[place:]}{inside}{call}"
        whole = said(parts_of(text, tools, piece_chars=len(text)))
        for piece_chars in (1, 7):
            assert said(parts_of(text, tools, piece_chars=piece_chars)) == whole


def test_arguments_come_as_they_are_written() -> None:
    """A call is shown from the beginning of its arguments on, not when it is whole."""
    splitter = Splitter(tool_parser="hermes", reasoning_parser=None)
    assert splitter.push('<tool_call>\n{"name": "f", "arguments": ') == []
    assert splitter.push('{"a"') == [ToolCallBegin(0, "f"), ToolArguments(0, '{"a"')]
    assert splitter.push(": 1}") == [ToolArguments(0, ": 1}"), ToolCallEnd(0, True)]


def test_text_waits_only_for_what_may_be_a_tag() -> None:
    """Plain text is shown at once; blanks and a tag's beginning wait for what follows."""
    splitter = Splitter(tool_parser="hermes", reasoning_parser=None)
    assert splitter.push("one") == [Text("one")]
    assert splitter.push(" <tool") == []
    assert splitter.push("s> ") == [Text(" <tools>")]
    assert splitter.push("end") == [Text(" end")]


def test_unknown_parser_shows_text() -> None:
    """A reader that is older than the reply's writer shows what it does not understand."""
    assert said(parts_of(CALL, tools="newer", thinking="newer")) == [("text", CALL)]
    assert set(TOOL_PARSERS) == {"hermes", "llama3_json"}
    assert set(REASONING_PARSERS) == {"think", "think_open"}


@pytest.mark.parametrize(
    "piece",
    [
        "\n",
        " <",
        "<tool_cal",
        "<tool_call>",
        "<tool_call>\n",
        '{"name":',
        CALL,
        "<think>",
        "x" * 50,
    ],
)
@pytest.mark.parametrize("tools", ["hermes", "llama3_json"])
@pytest.mark.parametrize("thinking", [None, "think_open"])
def test_time_is_linear_in_the_text(piece: str, tools: str, thinking: str | None) -> None:
    """Twenty thousand pieces of the kinds that make a parser look back are taken in a moment."""
    splitter = Splitter(tool_parser=tools, reasoning_parser=thinking)
    count = 20_000 if len(piece) < 20 else 2_000
    for _ in range(count):
        splitter.push(piece)
    splitter.end()
