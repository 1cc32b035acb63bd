"""What a choice's text is made of, as it is written: text, thinking, tool calls.

Owns the vocabulary between the splitter, which finds parts in text, and the shapes, which show them
in a dialect.
"""

from msgspec import Struct

__all__ = [
    "Part",
    "Text",
    "Thinking",
    "ThinkingEnd",
    "ToolArguments",
    "ToolCallBegin",
    "ToolCallEnd",
]


class Text(Struct, frozen=True):
    """More of the answer; never empty."""

    text: str


class Thinking(Struct, frozen=True):
    """More of what the model thinks before it answers; never empty."""

    text: str


class ThinkingEnd(Struct, frozen=True):
    """The thinking is over: by its closing tag or by the reply's end. Follows `Thinking` only."""


class ToolCallBegin(Struct, frozen=True):
    """The model calls a tool; its arguments follow."""

    index: int
    """Which call of its choice, from 0."""
    name: str


class ToolArguments(Struct, frozen=True):
    """More of a call's arguments, a piece of the text of a JSON object; never empty."""

    index: int
    """The call's."""
    text: str


class ToolCallEnd(Struct, frozen=True):
    """A call is over."""

    index: int
    complete: bool
    """False where its arguments broke off: the reply was cut, or what followed was not JSON."""


Part = Text | Thinking | ThinkingEnd | ToolCallBegin | ToolArguments | ToolCallEnd
