"""What a choice's text is made of, as it is written: text, thinking, tool calls.

Owns the vocabulary between the splitter, which finds parts in text, and the shapes, which show them
in a dialect.
"""

from dataclasses import dataclass

__all__ = [
    "Part",
    "Text",
    "Thinking",
    "ThinkingEnd",
    "ToolArguments",
    "ToolCallBegin",
    "ToolCallEnd",
]


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """More of what the model thinks before it answers; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingEnd:
    """The thinking is over: by its closing tag or by the reply's end. Follows `Thinking` only."""


@dataclass(frozen=True, slots=True)
class ToolCallBegin:
    """The model calls a tool; its arguments follow."""

    index: int
    """Which call of its choice, from 0."""
    name: str


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """More of a call's arguments, a piece of the text of a JSON object; never empty."""

    index: int
    """The call's."""
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """A call is over."""

    index: int
    complete: bool
    """False where its arguments broke off: the reply was cut, or what followed was not JSON."""


Part = Text | Thinking | ThinkingEnd | ToolCallBegin | ToolArguments | ToolCallEnd
