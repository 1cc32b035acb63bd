"""Grammars: the form that an event carries, and llguidance's form of the same.

Owns the one translation between them, so that the gateway's check and every engine compile the same
grammar. JSON stands on one line where a schema does not say otherwise (`x-guidance`): a model that
may write any white space between two members may write it for ever. Pure, and does not import
llguidance. Called by whoever compiles grammars.

Source: llguidance 1.7, docs/syntax.md and docs/json_schema.md; `TopLevelGrammar`.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["ONE_LINE", "BadGrammar", "guidance_of", "lark_regex"]

ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""The separators are regexes: with a space or without."""


class BadGrammar(ValueError):
    """A text that is no grammar, or a grammar that does not compile; the message says why."""


def guidance_of(grammar: str) -> str:
    """Return llguidance's form of `RequestAccepted.grammar`: JSON of its top-level grammar.

    Raises: BadGrammar where it is not of the form of an event. What it holds is judged only when it
    is compiled.
    """
    try:
        members = json.loads(grammar)
    except (ValueError, RecursionError) as error:
        raise BadGrammar(f"grammar: not JSON: {error}") from error
    if not isinstance(members, dict) or len(members) != 1:
        raise BadGrammar("grammar: an object with one member is expected")
    ((kind, value),) = members.items()
    translate = _KINDS.get(kind)
    if translate is None:
        raise BadGrammar(f"grammar: {kind!r} is none of {', '.join(_KINDS)}")
    return json.dumps({"grammars": [translate(value)]})


def _json_schema(schema: Any) -> Mapping[str, Any]:
    if not isinstance(schema, dict):
        raise BadGrammar("grammar: a JSON schema must be an object")
    return {"json_schema": {"x-guidance": ONE_LINE, **schema}}


def _json_object(asked: Any) -> Mapping[str, Any]:
    if asked is not True:
        raise BadGrammar("grammar: `json_object` is `true` or absent")
    return _json_schema({"type": "object"})


def _regex(pattern: Any) -> Mapping[str, Any]:
    return _lark(f"start: {lark_regex(_text(pattern, 'a regex'))}")


def _choice(texts: Any) -> Mapping[str, Any]:
    if not isinstance(texts, list) or not texts:
        raise BadGrammar("grammar: a choice is a list of at least one text")
    return _lark("start: " + " | ".join(json.dumps(_text(text, "a choice")) for text in texts))


def _lark(text: Any) -> Mapping[str, Any]:
    return {"lark_grammar": _text(text, "a Lark grammar")}


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise BadGrammar(f"grammar: {what} must be a text")
    return value


def lark_regex(pattern: str) -> str:
    """Return a regex between slashes: those of its own are escaped, on one line."""
    written, escaped = [], False
    for character in pattern:
        if character == "\n":
            written.append("n" if escaped else r"\n")
        else:
            written.append(rf"\{character}" if character == "/" and not escaped else character)
        escaped = character == "\\" and not escaped
    return f"/{''.join(written)}/"


_KINDS: Mapping[str, Callable[[Any], Mapping[str, Any]]] = {
    "json_schema": _json_schema,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "lark": _lark,
}
