"""The grammar of a reply that may or must call tools, think first, or follow a format. Pure.

Owns the form in which tools are called, as it is generated: `schemas.assembler` reads it back.

- `hermes`: `<tool_call>\\n{"name": "f", "arguments": {...}}\\n</tool_call>`, joined by newlines.
- `llama3_json`: `{"name": "f", "parameters": {...}}`, calls joined by `; `; a reply is either calls
  or a text that does not begin with `{`.

Free text runs until a call's opening tag; from there on the call is held to one of the allowed
tools and its arguments to that tool's schema. Tags that are control tokens of the model's tokenizer
are written as tokens, others as text.

Written in llguidance's dialect of Lark:
https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from schemas import limits
from schemas.grammar import ONE_LINE, lark_regex

__all__ = [
    "HERMES",
    "LLAMA",
    "THINK",
    "THINK_OPEN",
    "Calls",
    "Form",
    "answer_choice",
    "answer_json",
    "answer_regex",
    "reply_lark",
]

HERMES: Final = "hermes"
LLAMA: Final = "llama3_json"
THINK: Final = "think"
THINK_OPEN: Final = "think_open"

_TEXT = "/(?s:.*)/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a model writes what is not plain text."""

    tool_parser: str = HERMES
    reasoning_parser: str | None = None
    """For this reply: `think_open` where its prompt ends in an open tag."""
    control_tokens: frozenset[str] = frozenset()
    """Texts of the tokenizer's control tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Which calls a reply may or must make."""

    arguments: Mapping[str, Mapping[str, object]]
    """Schema of the arguments by name of the tool; at least one."""
    mode: Literal["auto", "required", "named"]
    parallel: bool


def reply_lark(form: Form, calls: Calls | None, answer: str | None) -> str:
    """Return the grammar of a whole reply.

    Args:
        form: how the model writes calls and thoughts.
        calls: what may be called; None = nothing.
        answer: Lark expression that the text must follow, `answer_*` below; None = any text.
    """
    rules = ["%llguidance {}"]
    body = _body(form, calls, answer)
    thinking = _thinking(form)
    if thinking is None:
        rules.append("start: body")
    elif form.reasoning_parser == THINK_OPEN:
        rules += ["start: thinking SPACE body", *thinking]
    else:
        rules += ["start: thinking SPACE body | body", *thinking]
    rules += body
    if calls is not None:
        rules += _call_rules(form, calls)
    if thinking is not None:
        rules.append(r"SPACE: /[ \n]{0,4}/")
    return "\n".join(rules) + "\n"


def answer_json(schema: Mapping[str, object]) -> str:
    """Return the expression of JSON that follows a schema."""
    return f"%json {json.dumps({'x-guidance': ONE_LINE, **schema}, separators=(',', ':'))}"


def answer_choice(choices: Sequence[str]) -> str:
    """Return the expression of one of several texts."""
    return "(" + " | ".join(map(json.dumps, choices)) + ")"


def answer_regex(pattern: str) -> str:
    """Return the expression of a regular expression."""
    return lark_regex(pattern)


def _body(form: Form, calls: Calls | None, answer: str | None) -> list[str]:
    """Return the rules of what follows the thinking."""
    if calls is None:
        assert answer is not None, "a reply of any text needs no grammar"
        return ["body: answer", f"answer: {answer}"]
    joined = '"\\n"' if form.tool_parser == HERMES else '"; "'
    several = calls.parallel and calls.mode != "named"
    more = f" ({joined} call){{0,{limits.TOOL_CALLS_MAX - 1}}}" if several else ""
    if calls.mode != "auto":
        return [f"body: call{more}"]
    if answer is not None:
        return [f"body: call{more} | answer", f"answer: {answer}"]
    if form.tool_parser == LLAMA:
        return [f"body: call{more} | TEXT", r"TEXT: /(?s:[^{\s].*)?/"]
    return _free_text(form, several)


def _free_text(form: Form, several: bool) -> list[str]:
    """Return the rules of text in which calls may stand (`hermes`)."""
    rules = ["body: turn* text" if several else "body: turn | text", "text: TEXT"]
    opening = _tag(form, "<tool_call>")
    if opening[0] == "<":
        rules.append(f"turn: TEXT {opening} inside")
    else:
        rules += [f"turn_head[lazy]: TEXT {opening}", "turn: turn_head inside"]
    if form.reasoning_parser == THINK and _tag(form, "<think>")[0] != "<":
        # Else the thinking's text could be read as the reply's, and calls in it be taken for real.
        return [*rules, f"TEXT: {_TEXT} & ~/(?s:<think>.*)/"]
    return [*rules, f"TEXT: {_TEXT}"]


def _call_rules(form: Form, calls: Calls) -> list[str]:
    """Return the rules of one call."""
    member = "arguments" if form.tool_parser == HERMES else "parameters"
    if form.tool_parser == HERMES:
        rules = [
            f"call: {_tag(form, '<tool_call>')} inside",
            f'inside: "\\n" object "\\n" {_tag(form, "</tool_call>")}',
        ]
    else:
        tag = "<|python_tag|>"
        rules = [f"call: {tag}? object" if tag in form.control_tokens else "call: object"]
    names = [f"tool_{number}" for number in range(len(calls.arguments))]
    rules.append(f"object: {' | '.join(names)}")
    for name, (tool, schema) in zip(names, calls.arguments.items(), strict=True):
        head = json.dumps(f'{{"name": {json.dumps(tool)}, "{member}": ')
        rules.append(f'{name}: {head} {answer_json(schema)} "}}"')
    return rules


def _thinking(form: Form) -> list[str] | None:
    """Return the rules of the thoughts before the reply; None where the model has none."""
    if form.reasoning_parser is None:
        return None
    opening, closing = _tag(form, "<think>"), _tag(form, "</think>")
    opened = "" if form.reasoning_parser == THINK_OPEN else f"{opening} "
    if closing[0] == "<":
        return [f"thinking: {opened}{_TEXT} {closing}"]
    if opened and opening[0] == "<":
        return [f"thinking: {opened}thought", r"thought[lazy]: /(?s:.*)<\/think>/"]
    start = "" if form.reasoning_parser == THINK_OPEN else "<think>"
    return [rf"thinking[lazy]: /{start}(?s:.*)<\/think>/"]


def _tag(form: Form, tag: str) -> str:
    """Return a tag as Lark wants it: control tokens bare, text quoted."""
    return tag if tag in form.control_tokens else json.dumps(tag)
