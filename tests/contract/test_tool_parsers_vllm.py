"""Our parser of tool calls beside vLLM's, on the same generated replies (ADR 7).

Where vLLM's is right: calls in their canonical form and its variants, text before them, whole and
streamed. It drops text behind calls and takes a closing tag in a string for the end of a call;
there ours is held by its own tests.
"""

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_workers.engine.environment import VllmSettings, missing_environment
from schemas.assembler.content import TextBlock, ToolBlock, blocks_of
from schemas.assembler.splitter import Splitter

pytestmark = [
    pytest.mark.vllm,
    # Torch and vLLM warn about each other's deprecated names while they load.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::ResourceWarning"),
]

REPLIES = 200
WORDS = ("é", "🙂", 'a "quoted" word', "back\\slash", "line\nbreak", "{brace}", "<tag>", "")
Seen = tuple[str, list[tuple[str, Any]]]
"""Text, and calls as name and value of the arguments."""


class Vocabulary:
    """What vLLM's parsers ask of a tokenizer."""

    def get_vocab(self) -> dict[str, int]:
        """Return the one token that they look for."""
        return {"<|python_tag|>": 1}


@pytest.fixture(scope="module")
def parsers() -> dict[str, Any]:
    """VLLM's parsers by their names; loading them loads torch."""
    settings = VllmSettings(model_path=Path())
    cores = sorted(os.sched_getaffinity(0))
    os.environ |= missing_environment(
        settings, cores=cores, prefix=Path(sys.prefix), environ=os.environ
    )
    from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser
    from vllm.tool_parsers.llama_tool_parser import Llama3JsonToolParser

    return {"hermes": Hermes2ProToolParser, "llama3_json": Llama3JsonToolParser}


def replies(form: str) -> Iterator[str]:
    """Yield replies as a model may write them in this form."""
    drawn = random.Random(7)
    for _ in range(REPLIES):
        calls = [call(drawn, form) for _ in range(drawn.randint(0, 3))]
        text = drawn.choice(["", "", "Let me see. 1 < 2", "Sure — zwei\n\n"])
        if form == "hermes":
            blank = drawn.choice(["\n", "", " \n"])
            tagged = [f"<tool_call>{blank}{each}{blank}</tool_call>" for each in calls]
            yield text + drawn.choice(["\n", ""]).join(tagged)
        elif calls:
            yield drawn.choice(["", "<|python_tag|>"]) + "; ".join(calls)
        else:
            yield text


def call(drawn: random.Random, form: str) -> str:
    """Return one call, its members in either order."""
    key = drawn.choice(["arguments", "parameters"]) if form == "llama3_json" else "arguments"
    members = {"name": drawn.choice(["f", "get_weather", "a-b_c"]), key: arguments(drawn, 3)}
    if drawn.random() < 0.2:
        members = dict(reversed(members.items()))
    separators = drawn.choice([(",", ":"), (", ", ": ")])
    is_ascii = drawn.random() < 0.5
    return json.dumps(members, separators=separators, ensure_ascii=is_ascii)


def arguments(drawn: random.Random, depth: int) -> dict[str, Any]:
    """Return an object of any JSON values."""
    return {f"k{number}": value(drawn, depth) for number in range(drawn.randint(0, 3))}


def value(drawn: random.Random, depth: int) -> Any:
    """Return any JSON value."""
    leaves = [None, True, False, drawn.randint(-9, 10**12), -1.5e-7, drawn.choice(WORDS)]
    if depth == 0 or drawn.random() < 0.6:
        return drawn.choice(leaves)
    if drawn.random() < 0.5:
        return [value(drawn, depth - 1) for _ in range(drawn.randint(0, 3))]
    return arguments(drawn, depth - 1)


def pieces_of(text: str) -> Iterator[str]:
    """Cut a reply as tokens would."""
    drawn, start = random.Random(len(text)), 0
    while start < len(text):
        size = drawn.randint(1, 6)
        yield text[start : start + size]
        start += size


def ours(form: str, text: str) -> Seen:
    """Return what our parser sees, piece by piece."""
    splitter = Splitter(tool_parser=form, reasoning_parser=None)
    parts = [part for piece in pieces_of(text) for part in splitter.push(piece)]
    blocks = blocks_of(parts + splitter.end())
    calls = [block for block in blocks if isinstance(block, ToolBlock)]
    assert all(block.complete for block in calls)
    shown = "".join(block.text for block in blocks if isinstance(block, TextBlock))
    return shown.strip(), [(block.name, json.loads(block.arguments)) for block in calls]


@pytest.mark.parametrize("form", ["hermes", "llama3_json"])
def test_same_calls_in_whole_replies(form: str, parsers: dict[str, Any]) -> None:
    """Names, arguments and text are those that vLLM's parser extracts from the whole reply."""
    seen = 0
    for text in replies(form):
        found = parsers[form](Vocabulary()).extract_tool_calls(text, None)
        calls = [
            (each.function.name, json.loads(each.function.arguments)) for each in found.tool_calls
        ]
        assert ours(form, text) == ((found.content or "").strip(), calls), text
        seen += len(calls)
    assert seen > REPLIES


def test_same_calls_in_streamed_replies(parsers: dict[str, Any]) -> None:
    """What vLLM's Hermes parser streams adds up to what ours shows."""
    checked = 0
    for text in replies("hermes"):
        if '{"arguments"' in text.replace(" ", ""):
            continue  # vLLM streams whatever follows such arguments as theirs
        parser, before, shown = parsers["hermes"](Vocabulary()), "", ""
        calls: dict[int, list[str]] = {}
        for piece in pieces_of(text):
            after = before + piece
            delta = parser.extract_tool_calls_streaming(before, after, piece, [], [], [], None)
            before = after
            if delta is None:
                continue
            shown += delta.content or ""
            for each in delta.tool_calls:
                name, so_far = calls.setdefault(each.index, ["", ""])
                calls[each.index] = [
                    name + (each.function.name or ""),
                    so_far + (each.function.arguments or ""),
                ]
        streamed = [(name, json.loads(written)) for name, written in calls.values()]
        assert ours("hermes", text) == (shown.strip(), streamed), text
        checked += len(calls)
    assert checked > REPLIES / 2
