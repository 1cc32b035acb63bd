"""All that was shown of a choice: the blocks that its parts add up to.

Owns the sum of the parts, so that a body is what its stream added up to. Called by the assembler;
the shapes read it at the end.
"""

from collections.abc import Iterable

from msgspec import Struct

from schemas.assembler.logprobs import ShownLogprob
from schemas.assembler.parts import (
    Part,
    Text,
    Thinking,
    ThinkingEnd,
    ToolArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from schemas.replies import Stop, StopReason

__all__ = [
    "Block",
    "ShownChoice",
    "TextBlock",
    "ThinkingBlock",
    "TokenCounts",
    "ToolBlock",
    "blocks_of",
]


class TextBlock(Struct, frozen=True, kw_only=True):
    """A piece of the answer between other blocks."""

    text: str


class ThinkingBlock(Struct, frozen=True, kw_only=True):
    """What the model thought before it answered."""

    text: str


class ToolBlock(Struct, frozen=True, kw_only=True):
    """A call of a tool."""

    index: int
    name: str
    arguments: str
    """JSON text of an object; its beginning where the call is not complete."""
    complete: bool


Block = TextBlock | ThinkingBlock | ToolBlock


class ShownChoice(Struct, frozen=True, kw_only=True):
    """A choice that has ended."""

    blocks: tuple[Block, ...]
    stop: Stop
    logprobs: tuple[ShownLogprob, ...] | None = None
    """By token that shows; None where the request did not ask."""

    @property
    def text(self) -> str:
        """The answer without what stands between its pieces."""
        return "".join(block.text for block in self.blocks if isinstance(block, TextBlock))

    @property
    def thinking(self) -> str:
        """What the model thought; empty where it did not."""
        return "".join(block.text for block in self.blocks if isinstance(block, ThinkingBlock))

    @property
    def calls(self) -> tuple[ToolBlock, ...]:
        """The calls, complete or not, in order."""
        return tuple(block for block in self.blocks if isinstance(block, ToolBlock))

    @property
    def awaits_tools(self) -> bool:
        """True where the model ended its turn to have tools run."""
        return self.stop.reason is StopReason.END and any(call.complete for call in self.calls)


class TokenCounts(Struct, frozen=True, kw_only=True):
    """What a reply is billed for beside its prompt, over all choices."""

    output: int
    thinking: int = 0
    """How many of `output` the thinking took, its tags included."""
    cached: int = 0
    """How many of the prompt's tokens were found in the prefix cache."""


def blocks_of(parts: Iterable[Part]) -> tuple[Block, ...]:
    """Return the blocks that parts add up to."""
    blocks: list[Block] = []
    pieces: list[str] = []
    kind: type[Text] | type[Thinking] | None = None

    def close() -> None:
        if kind is Text:
            blocks.append(TextBlock(text="".join(pieces)))
        elif kind is Thinking:
            blocks.append(ThinkingBlock(text="".join(pieces)))
        pieces.clear()

    begin: ToolCallBegin | None = None
    for part in parts:
        match part:
            case Text() | Thinking():
                if kind is not type(part):
                    close()
                    kind = type(part)
                pieces.append(part.text)
            case ThinkingEnd():
                close()
                kind = None
            case ToolCallBegin():
                close()
                kind, begin = None, part
            case ToolArguments():
                pieces.append(part.text)
            case ToolCallEnd():
                assert begin is not None, "a call ends after it began"
                blocks.append(
                    ToolBlock(
                        index=begin.index,
                        name=begin.name,
                        arguments="".join(pieces),
                        complete=part.complete,
                    )
                )
                pieces.clear()
    close()
    return tuple(blocks)
