"""Grammars: the form of an event becomes llguidance's own."""

import json

import llguidance
import pytest
from llguidance import LLMatcher

from schemas.grammar import BadGrammar, guidance_of

PATTERNS = [
    "a/b",
    r"a\/b",
    "a\\\nb",
    "a\nb",
    r"\\/",
    "[^/]+",
    r"\d{2}",
    "漢|🐨",
    "",
    r"a\n",
    "(/|x)*",
]


def same(mine: str, theirs: str) -> bool:
    """Tell whether two forms hold the same grammar."""
    (one,), (other,) = json.loads(mine)["grammars"], json.loads(theirs)["grammars"]
    return all(one.get(name) == other.get(name) for name in ("json_schema", "lark_grammar"))


def test_a_schema_is_written_on_one_line() -> None:
    """Unless it says itself how its JSON is written."""
    form = json.loads(guidance_of('{"json_schema": {"type": "object"}}'))
    assert form["grammars"][0]["json_schema"]["x-guidance"]["whitespace_flexible"] is False
    own = {"type": "object", "x-guidance": {"whitespace_flexible": True}}
    form = json.loads(guidance_of(json.dumps({"json_schema": own})))
    assert form["grammars"][0]["json_schema"] == own


def test_a_schema_is_as_the_library_takes_it() -> None:
    """Members keep their order, in which the reply has them too."""
    schema = {
        "x-guidance": {"whitespace_flexible": False},
        "type": "object",
        "properties": {"b": {"type": "string"}, "a": {"type": "null"}},
    }
    mine = guidance_of(json.dumps({"json_schema": schema}))
    assert same(mine, LLMatcher.grammar_from_json_schema(schema))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_regex_stands_between_slashes(pattern: str) -> None:
    """Slashes and line ends of its own are escaped once, and it means what it did."""
    form = guidance_of(json.dumps({"regex": pattern}))
    assert LLMatcher.validate_grammar(form) == LLMatcher.validate_grammar(
        LLMatcher.grammar_from_regex(pattern)
    )
    assert same(form, LLMatcher.grammar_from_regex(pattern))


def test_a_choice_is_one_of_its_texts() -> None:
    """Quotes, line ends and characters beyond the basic plane stay what they are."""
    texts = ['say "a"', "two\nlines", "🐨"]
    (mine,) = json.loads(guidance_of(json.dumps({"choice": texts})))["grammars"]
    assert mine["lark_grammar"] == llguidance.grammar_from("choice", json.dumps(texts))


def test_lark_is_taken_as_it_is() -> None:
    """Also where it holds what other kinds of grammars look like."""
    lark = 'start: "::=" %json {"const": "a ::= b"}'
    assert json.loads(guidance_of(json.dumps({"lark": lark})))["grammars"] == [
        {"lark_grammar": lark}
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"json_schema": {}, "regex": "a"}',
        '{"json_schema": true}',
        '{"json_object": false}',
        '{"regex": 1}',
        '{"choice": []}',
        '{"choice": ["a", 1]}',
        '{"lark": null}',
        '{"ebnf": "a"}',
        "[" * 100_000,
    ],
)
def test_what_is_no_grammar_is_refused(text: str) -> None:
    """With a message that names the field, never with another exception."""
    with pytest.raises(BadGrammar, match=r"^grammar: "):
        guidance_of(text)
