"""Grammars of replies: which texts they take, for every choice, form and order of parts."""

from collections.abc import Mapping
from typing import Literal

import llguidance
import pytest

from schemas.tool_grammar import (
    LLAMA,
    THINK,
    THINK_OPEN,
    Calls,
    Form,
    answer_choice,
    answer_json,
    answer_regex,
    reply_lark,
)
from tests.gateway_http import byte_tokenizer

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Mapping[str, Mapping[str, object]] = {"weather": CITY, "time": CITY}
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "time", "arguments": {"city":"Rome","days":3}}\n</tool_call>'
WRONG = '<tool_call>\n{"name": "weather", "arguments": {"town": "Paris"}}\n</tool_call>'
UNKNOWN = '<tool_call>\n{"name": "other", "arguments": {"city": "Paris"}}\n</tool_call>'
BARE = '{"name": "weather", "parameters": {"city": "Paris"}}'
THOUGHT = "<think>\nhm <tool_call> not yet\n</think>"
ANSWER = '{"city": "Oslo"}'
TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>")

Mode = Literal["auto", "required", "named"]


def tokenizer(control_tokens: tuple[str, ...] = ()) -> llguidance.LLTokenizer:
    """Return the engine's view of a tokenizer of bytes, with control tokens of its own."""
    made = byte_tokenizer()
    made.add_special_tokens(["<end>", *control_tokens])
    end = made.token_to_id("<end>")
    assert end is not None
    return llguidance.LLTokenizer(made.to_str(), eos_token=[end])


PLAIN_TOKENIZER = tokenizer()
TAGGED_TOKENIZER = tokenizer(TAGS)


def takes(lark: str, text: str, *, tagged: bool = False) -> bool:
    """Tell whether a grammar takes a text as a whole reply."""
    over = TAGGED_TOKENIZER if tagged else PLAIN_TOKENIZER
    matcher = llguidance.LLMatcher(over, llguidance.grammar_from("grammar", lark), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = over.tokenize_str(text, parse_special=tagged)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def calls(mode: Mode, *, parallel: bool = True) -> Calls:
    """Return calls of two tools, of one where it is named."""
    return Calls(
        arguments={"weather": CITY} if mode == "named" else TOOLS, mode=mode, parallel=parallel
    )


@pytest.mark.parametrize("tagged", [False, True])
@pytest.mark.parametrize(
    ("mode", "parallel", "text", "taken"),
    [
        ("auto", True, "", True),
        ("auto", True, "No call, a < b.", True),
        ("auto", True, WEATHER, True),
        ("auto", True, f"Let me see. {WEATHER}\n{TIME} There.", True),
        ("auto", True, WRONG, False),
        ("auto", True, f"Well, {UNKNOWN}", False),
        ("auto", True, WEATHER[:-3], False),
        ("auto", False, f"Let me see. {WEATHER}", True),
        ("auto", False, f"{WEATHER}\n{TIME}", False),
        ("auto", False, f"{WEATHER} There.", False),
        ("required", True, WEATHER, True),
        ("required", True, f"{WEATHER}\n{TIME}", True),
        ("required", True, "", False),
        ("required", True, f"Well, {WEATHER}", False),
        ("required", True, WRONG, False),
        ("required", False, TIME, True),
        ("required", False, f"{WEATHER}\n{TIME}", False),
        ("named", True, WEATHER, True),
        ("named", True, TIME, False),
        ("named", True, f"{WEATHER}\n{WEATHER}", False),
    ],
)
def test_calls_follow_choice_and_schema(
    tagged: bool, mode: Mode, parallel: bool, text: str, taken: bool
) -> None:
    """Each choice takes its texts and calls and nothing else, with tags as tokens or as text."""
    form = Form(control_tokens=frozenset(TAGS)) if tagged else Form()
    lark = reply_lark(form, calls(mode, parallel=parallel), None)
    assert takes(lark, text, tagged=tagged) is taken


@pytest.mark.parametrize(
    ("mode", "text", "taken"),
    [
        ("auto", BARE, True),
        ("auto", f"{BARE}; {BARE}", True),
        ("auto", "No call {x}", True),
        ("auto", "", True),
        ("auto", "{x}", False),
        ("auto", f" {BARE}", False),
        ("required", BARE, True),
        ("required", "No call", False),
    ],
)
def test_bare_calls_begin_the_reply(mode: Mode, text: str, taken: bool) -> None:
    """In Llama's form a reply is either calls or a text that does not begin like one."""
    assert takes(reply_lark(Form(tool_parser=LLAMA), calls(mode), None), text) is taken


@pytest.mark.parametrize("tagged", [False, True])
@pytest.mark.parametrize(
    ("mode", "text", "taken"),
    [
        ("auto", f"{THOUGHT}\n\n{WEATHER}", True),
        ("auto", f"{THOUGHT}Hello", True),
        ("auto", "Hello", True),
        ("auto", f"{THOUGHT}{WRONG}", False),
        ("auto", "<think>for ever", False),
        ("required", f"{THOUGHT}\n\n{WEATHER}", True),
        ("required", WEATHER, True),
        ("required", THOUGHT, False),
    ],
)
def test_thoughts_come_first_and_are_free(tagged: bool, mode: Mode, text: str, taken: bool) -> None:
    """A thinking model may think before whatever follows; calls in its thoughts are none."""
    if tagged:  # a control token in free text is not for the taking
        text = text.replace("hm <tool_call>", "hm")
    tokens = frozenset(TAGS) if tagged else frozenset[str]()
    form = Form(reasoning_parser=THINK, control_tokens=tokens)
    assert takes(reply_lark(form, calls(mode), None), text, tagged=tagged) is taken


@pytest.mark.parametrize("tagged", [False, True])
def test_opened_thoughts_are_closed_before_anything_else(tagged: bool) -> None:
    """Where the prompt has opened the thoughts, the reply has to close them."""
    tokens = frozenset(TAGS) if tagged else frozenset[str]()
    form = Form(reasoning_parser=THINK_OPEN, control_tokens=tokens)
    lark = reply_lark(form, calls("required"), None)
    assert takes(lark, f"hm</think>\n{WEATHER}", tagged=tagged)
    assert not takes(lark, WEATHER, tagged=tagged)


@pytest.mark.parametrize(
    ("answer", "good", "bad"),
    [
        (answer_json(CITY), ANSWER, '{"town": "Oslo"}'),
        (answer_choice(["yes", 'say "no"']), 'say "no"', "no"),
        (answer_regex("a/b\\/c\nd?"), "a/b/c\n", "a/b"),
    ],
)
def test_an_answer_follows_its_format_after_thoughts_and_instead_of_calls(
    answer: str, good: str, bad: str
) -> None:
    """JSON, choices and patterns stand alone, after thoughts, or where a call might stand."""
    thinking = Form(reasoning_parser=THINK)
    alone = reply_lark(thinking, None, answer)
    assert takes(alone, good) and takes(alone, f"{THOUGHT}\n{good}")
    assert not takes(alone, bad) and not takes(alone, f"{THOUGHT}\n{bad}")
    either = reply_lark(Form(), calls("auto"), answer)
    assert takes(either, good) and takes(either, WEATHER)
    assert not takes(either, bad) and not takes(either, f"{WEATHER}{good}")
