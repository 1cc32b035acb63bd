"""Text of one choice to parts: first the thinking, then answer and tool calls.

Owns the order of the two and the thinking's tags. Makes no events (`shape.py`) and knows no
dialect. Called by the assembler, for replies whose header names a parser.
"""

from typing import Final, Protocol

from schemas.assembler.parts import Part, Text, Thinking, ThinkingEnd
from schemas.assembler.tag_text import BLANKS, LeadingTag, UntilTag
from schemas.assembler.tool_calls import TOOL_FORMS, ToolCalls

__all__ = ["REASONING_PARSERS", "TOOL_PARSERS", "Splitter"]

TOOL_PARSERS: Final = frozenset(TOOL_FORMS)
"""What `ReplyHeader.tool_parser` may say. A reader that does not know a parser shows text."""
REASONING_PARSERS: Final = frozenset({"think", "think_open"})
"""What `ReplyHeader.reasoning_parser` may say. `think`: the reply may begin with the tag;
`think_open`: the prompt ended with it, the reply begins inside the thinking."""

_OPENING: Final = "<think>"
_CLOSING: Final = "</think>"


class _Answer(Protocol):
    """What follows the thinking."""

    def push(self, text: str) -> list[Part]: ...

    def trim(self) -> None: ...

    def end(self, *, cut: bool) -> list[Part]: ...


class Splitter:
    """Mutable state of one choice."""

    def __init__(self, *, tool_parser: str | None, reasoning_parser: str | None) -> None:
        form = TOOL_FORMS.get(tool_parser or "")
        self._answer: _Answer = _PlainText() if form is None else ToolCalls(form)
        may_think = reasoning_parser in REASONING_PARSERS
        self._leading = LeadingTag(_OPENING) if may_think else None
        """Looks for the opening tag; models whose prompt ends with it may say it again."""
        self._opened = reasoning_parser == "think_open"
        self._thinking: UntilTag | None = None
        self._has_thought = False

    @property
    def undecided(self) -> bool:
        """True while the text so far may be the beginning of a thinking."""
        return self._leading is not None

    @property
    def thinking(self) -> bool:
        """True while the text is inside the thinking."""
        return self._thinking is not None or (self._opened and self._leading is not None)

    def push(self, text: str) -> list[Part]:
        """Take what one token released; return the parts that it makes certain."""
        if self._leading is not None:
            found = self._leading.push(text)
            if found is None:
                return []
            has_tag, text = found
            self._leading = None
            if has_tag or self._opened:
                self._thinking = UntilTag(_CLOSING, trims=True)
        if self._thinking is None:
            return self._answer.push(text)
        shown, rest = self._thinking.push(text)
        parts = self._thought(shown)
        if rest is None:
            return parts
        self._thinking = None
        self._answer.trim()
        return [*parts, *self._stopped_thinking(), *self._answer.push(rest)]

    def end(self, *, cut: bool = False) -> list[Part]:
        """Return the parts that only the end makes certain.

        Args:
            cut: the reply was ended, by a limit or a stop string; the model had not finished.
        """
        if self._leading is not None:
            is_tag = cut and self._leading.holds
            held = self._leading.end()
            if self._opened:
                return [*self._thought(held.strip(BLANKS)), *self._stopped_thinking()]
            if is_tag:
                return []
            return [*self._answer.push(held), *self._answer.end(cut=cut)]
        if self._thinking is not None:
            shown = self._thinking.end()
            if not self._has_thought:
                shown = shown.lstrip(BLANKS)
            return [*self._thought(shown), *self._stopped_thinking()]
        return self._answer.end(cut=cut)

    def _thought(self, text: str) -> list[Part]:
        if not text:
            return []
        self._has_thought = True
        return [Thinking(text)]

    def _stopped_thinking(self) -> list[Part]:
        return [ThinkingEnd()] if self._has_thought else []


class _PlainText:
    """An answer without tool calls."""

    def __init__(self) -> None:
        self._trims = False

    def push(self, text: str) -> list[Part]:
        """Return the text, without the blanks before it where it is to be trimmed."""
        if self._trims:
            text = text.lstrip(BLANKS)
            self._trims = not text
        return [Text(text)] if text else []

    def trim(self) -> None:
        """Show no blanks before what comes first."""
        self._trims = True

    def end(self, *, cut: bool) -> list[Part]:
        """Return nothing: nothing is held back."""
        return []
