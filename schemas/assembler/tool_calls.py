"""Tool calls in the text of one choice: where they stand, their names and arguments as they come.

Owns the forms in which models write calls. A call is shown once its name is known and its arguments
begin; from then on only what is valid JSON is shown of it. Whatever turns out not to be a call
before that is text, to the letter. Time is linear in the text. Who may call what is the grammar's
business (`schemas.tool_grammar`), not this module's.

A reply that is cut may end inside a call. Markup is not shown there: the call is, once its name is
known, with its arguments as far as they came; before that, nothing is. A tag that has only begun
is taken for one where a call would stand: first in the reply, or right behind a call.

Source: vLLM's parsers `hermes` and `llama3_json`, which a contract test runs beside this one
(`docs/adr/0007-own-parsers.md`).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from schemas.assembler.json_scan import JsonScanner
from schemas.assembler.parts import Part, Text, ToolArguments, ToolCallBegin, ToolCallEnd
from schemas.assembler.tag_text import BLANKS, LeadingTag, UntilTag
from schemas.assembler.written_calls import (
    WrittenCall,
    may_be_bare_call,
    read_calls,
    read_cut_calls,
)

__all__ = ["TOOL_FORMS", "ToolCalls"]

_HEAD_CHARS_MAX: Final = 512
"""A head that has not come to the arguments by then is read when the whole call is there."""
_HEAD: Final = re.compile(
    r'\s*\{\s*"name"\s*:\s*"([^"\\\s\x00-\x1f]{1,128})"'
    r'\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_FIRST_KEY: Final = re.compile(r'\s*\{\s*"([^"\\]*)"')
_BARE_KEYS: Final = ("name", "arguments", "parameters", "type", "function")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolForm:
    """How a model writes a call."""

    opening: str
    closing: str | None
    """None: the call ends with its object."""
    bare: bool
    """True: a reply, or what follows a call, may begin with a call's object, without the tag."""


TOOL_FORMS: Final = {
    "hermes": ToolForm(opening="<tool_call>", closing="</tool_call>", bare=False),
    "llama3_json": ToolForm(opening="<|python_tag|>", closing=None, bare=True),
}
"""By `ReplyHeader.tool_parser`."""

_Step = Callable[[str, list[Part]], str]
"""One state: takes text, adds parts, returns the text that the next state is to take."""


class ToolCalls:
    """Mutable state of one choice: where in which call the text is."""

    def __init__(self, form: ToolForm) -> None:
        self._form = form
        self._calls = 0
        self._trims = False
        """True behind a tag: blanks there are not shown."""
        self._follows_text = False
        """True once text is shown, until a call follows it."""
        self._until = UntilTag(form.opening)
        self._leading = LeadingTag(form.opening)
        self._scanner = JsonScanner()
        self._raw: list[str] = []
        """The call so far, tag included, while it may turn out to be text."""
        self._head: str | None = ""
        """The beginning of the call's object; None once it is too long to look at again."""
        self._step: _Step = self._opening if form.bare else self._text

    def push(self, text: str) -> list[Part]:
        """Take what one token released; return the parts that it makes certain."""
        parts: list[Part] = []
        while text:
            text = self._step(text, parts)
        return parts

    def trim(self) -> None:
        """Show no blanks before what comes first: a tag stands there."""
        self._trims = True
        self._until = UntilTag(self._form.opening, trims=True)

    def end(self, *, cut: bool) -> list[Part]:
        """Return the parts that only the end makes certain: the text held back, a call cut off.

        Args:
            cut: the reply was ended; the model had not finished.
        """
        if self._step == self._arguments:
            return [ToolCallEnd(self._calls - 1, False)]
        rest = ""
        if self._step == self._text:
            is_tag = cut and self._until.holds and not self._follows_text
            rest = "" if is_tag else self._until.end()
        elif self._step == self._object:
            if cut and self._is_call():
                return self._cut_calls()
            rest = "".join(self._raw)
        elif self._step in (self._opening, self._brace):
            rest = "" if cut and self._leading.holds else self._leading.end()
            if self._trims:
                rest = rest.strip(BLANKS)
        return [Text(rest)] if rest else []

    # --- outside a call

    def _text(self, text: str, parts: list[Part]) -> str:
        shown, rest = self._until.push(text)
        if shown:
            parts.append(Text(shown))
            self._follows_text = True
        if rest is None:
            return ""
        self._trims = True
        if self._form.bare:
            return self._look_for("{", self._brace, rest)
        self._begin(self._until.dropped + self._form.opening)
        return rest

    def _opening(self, text: str, parts: list[Part]) -> str:
        """Look for a bare call, or for the tag before one."""
        found = self._leading.push(text)
        if found is None:
            return ""
        has_tag, rest = found
        self._trims = self._trims or has_tag
        return self._look_for("{", self._brace, rest)

    def _brace(self, text: str, parts: list[Part]) -> str:
        found = self._leading.push(text)
        if found is None:
            return ""
        is_object, rest = found
        if is_object:
            self._begin("")
            return "{" + rest
        return self._answer(rest)

    # --- inside a call

    def _begin(self, tag: str) -> None:
        self._raw = [tag]
        self._scanner = JsonScanner()
        self._head = ""
        self._step = self._object

    def _object(self, text: str, parts: list[Part]) -> str:
        """Take the call's object up to its arguments, or whole where it is not in that order."""
        scanner = self._scanner
        taken = text[: scanner.push(text)]
        rest = text[len(taken) :]
        self._raw.append(taken)
        if self._head is not None:
            self._head += taken
            head = _HEAD.match(self._head)
            if head is not None and head.end() <= _HEAD_CHARS_MAX:
                self._show(ToolCallBegin(self._calls, head[1]), parts)
                self._scanner = JsonScanner()
                self._step = self._arguments
                return self._head[head.end() :] + rest
            end = _data_from(self._head[:_HEAD_CHARS_MAX]) if self._form.bare else None
            if end is not None:
                return self._no_call(self._head[:end], self._head[end:] + rest, parts)
            if len(self._head) > _HEAD_CHARS_MAX:
                self._head = None
        if scanner.done:
            calls = read_calls("".join(self._raw[1:]), bare=self._form.bare)
            if calls:
                self._show_whole(calls, parts)
                return self._look_behind(rest)
        if scanner.done or scanner.broken:
            return self._no_call("".join(self._raw), rest, parts)
        return ""

    def _arguments(self, text: str, parts: list[Part]) -> str:
        scanner = self._scanner
        position = scanner.push(text)
        written = scanner.take()
        if written:
            parts.append(ToolArguments(self._calls - 1, written))
        if scanner.done:
            parts.append(ToolCallEnd(self._calls - 1, True))
            return self._look_for("}", self._tail, text[position:])
        if scanner.broken:
            parts.append(ToolCallEnd(self._calls - 1, False))
            self._trims = False
            return self._answer(scanner.unwritten + text[position:])
        return ""

    def _tail(self, text: str, parts: list[Part]) -> str:
        """Take the end of the call's object; other members may come before it."""
        found = self._leading.push(text)
        if found is None:
            return ""
        is_closed, rest = found
        if is_closed or not rest.lstrip(BLANKS).startswith(","):
            return self._look_behind(rest)
        self._scanner = JsonScanner()
        self._scanner.push("{")
        self._raw = []
        self._step = self._members
        return rest.lstrip(BLANKS)[1:]

    def _members(self, text: str, parts: list[Part]) -> str:
        taken = text[: self._scanner.push(text)]
        self._raw.append(taken)
        if self._scanner.broken:
            return self._no_call("," + "".join(self._raw), text[len(taken) :], parts)
        return self._look_behind(text[len(taken) :]) if self._scanner.done else ""

    def _is_call(self) -> bool:
        """Tell whether the object so far belongs to a call: behind a tag, all that may be one."""
        return not self._form.bare or may_be_bare_call("".join(self._raw))

    def _cut_calls(self) -> list[Part]:
        """Return what is known of the calls of an object that breaks off."""
        parts: list[Part] = []
        for call in read_cut_calls("".join(self._raw[1:])):
            self._show(ToolCallBegin(self._calls, call.name), parts)
            if call.arguments:
                parts.append(ToolArguments(self._calls - 1, call.arguments))
            parts.append(ToolCallEnd(self._calls - 1, False))
        return parts

    # --- behind a call

    def _look_behind(self, rest: str) -> str:
        """Go on behind a call, with its closing tag or with what parts it from the next."""
        self._trims = True
        return self._look_for(self._form.closing or ";", self._behind, rest)

    def _behind(self, text: str, parts: list[Part]) -> str:
        found = self._leading.push(text)
        if found is None:
            return ""
        if self._form.bare:
            return self._look_for(self._form.opening, self._opening, found[1])
        return self._answer(found[1])

    def _look_for(self, tag: str, step: _Step, rest: str) -> str:
        self._leading = LeadingTag(tag)
        self._step = step
        return rest

    def _no_call(self, shown: str, rest: str, parts: list[Part]) -> str:
        """Show what was taken for a call, up to where that was decided; the rest is new text."""
        parts.append(Text(shown))
        self._follows_text = True
        self._trims = False
        return self._answer(rest)

    def _answer(self, rest: str) -> str:
        """Go on with text up to the next tag."""
        self._until = UntilTag(self._form.opening, trims=self._trims)
        self._step = self._text
        return rest

    def _show(self, begin: ToolCallBegin, parts: list[Part]) -> None:
        parts.append(begin)
        self._calls += 1
        self._follows_text = False
        self._trims = True

    def _show_whole(self, calls: tuple[WrittenCall, ...], parts: list[Part]) -> None:
        for call in calls:
            self._show(ToolCallBegin(self._calls, call.name), parts)
            index = self._calls - 1
            parts.extend((ToolArguments(index, call.arguments), ToolCallEnd(index, True)))


def _data_from(head: str) -> int | None:
    """Return where a bare object's first key, just ended, tells that it is no call; else None.

    Nothing behind that place has been looked at yet, however much of it came in the same piece.
    """
    key = _FIRST_KEY.match(head)
    return None if key is None or key[1] in _BARE_KEYS else key.end()
