"""Prompts as text: a conversation through its chat template, with no control token of a client's.

Owns one promise: nothing that a client writes becomes a control token. Text that spells one
(`<|im_end|>`) is marked before the template sees it, and the prompt is cut at the marks before it
is tokenized, so that the spelling never stands in one piece. Everything else reads exactly as in
transformers' `apply_chat_template`. Called by `infra/tokenizer.py`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from infra.chat_template import ChatTemplate, TemplateRefused
from infra.errors import StartupError
from schemas.dialects.canonical import CanonicalMessage, Tool
from schemas.tool_prompt import (
    described_turns,
    native_tools,
    native_turns,
    renditions,
    texts_of,
)

# Code points that Unicode reserves for use inside a program: no text needs them.
_NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))


class UnrenderablePrompt(Exception):
    """The model's chat template refuses these messages; the gateway answers 400 saying so."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt, cut where a client's text would have formed a control token."""

    pieces: tuple[str, ...]
    is_raw: bool = False
    """True for text that no template wrote: the tokenizer adds what it begins texts with."""

    @property
    def text(self) -> str:
        """The prompt as one string."""
        return "".join(self.pieces)

    @property
    def size_bytes(self) -> int:
        """The prompt's length in UTF-8."""
        return sum(len(piece.encode()) for piece in self.pieces)


class PromptRenderer:
    """Renders with one template, for one set of control tokens; immutable."""

    def __init__(self, template: ChatTemplate, control_tokens: Iterable[str]) -> None:
        """Take both; raises StartupError where a control token cannot be cut in two."""
        self._template = template
        self._control_tokens = tuple(control_tokens)
        if any(len(token) < 2 for token in self._control_tokens):
            raise StartupError("the tokenizer has a control token of one character: unsupported")
        alternatives = "|".join(map(re.escape, self._control_tokens))
        # Zero-width, so that overlapping spellings are all found; `(?!)` matches nothing.
        self._spelling = re.compile(f"(?={alternatives})" if alternatives else "(?!)")

    def render(
        self,
        messages: Sequence[CanonicalMessage],
        tools: Sequence[Tool],
        enable_thinking: bool | None,
    ) -> Prompt:
        """Apply the template; one that refuses the conversation is tried with plainer renditions.

        Raises: UnrenderablePrompt.
        """
        texts = list(texts_of(messages, tools))
        free = (mark for mark in _NONCHARACTERS if all(mark not in text for text in texts))
        cut, end = next(free, None), next(free, None)
        if cut is None or end is None:
            raise UnrenderablePrompt("the messages use every Unicode noncharacter")
        refusal: TemplateRefused | None = None
        for rendition in renditions(messages, has_tools=bool(tools)):
            try:
                text = self._rendered(rendition, tools, enable_thinking, cut, end)
            except TemplateRefused as error:
                refusal = refusal or error
                continue
            return Prompt(tuple(piece for piece in text.split(cut) if piece))
        raise UnrenderablePrompt(str(refusal)) from refusal

    def _rendered(
        self,
        messages: Sequence[CanonicalMessage],
        tools: Sequence[Tool],
        enable_thinking: bool | None,
        cut: str,
        end: str,
    ) -> str:
        """Return the prompt's text with its cuts. Raises TemplateRefused, UnrenderablePrompt."""

        def mark(text: str) -> str:
            return self._marked(text, cut)

        native = self._template.knows_tools
        turns = native_turns(messages, mark) if native else described_turns(messages, tools, mark)
        continued = bool(messages) and messages[-1].continued
        if continued:
            turns[-1]["content"] = f"{turns[-1]['content']}{end}"
        text = self._template.render(
            turns,
            add_generation_prompt=not continued,
            tools=native_tools(tools, mark) if native else (),
            enable_thinking=enable_thinking,
        )
        if not continued:
            return text
        if end not in text:
            raise UnrenderablePrompt("the model's chat template cannot continue a last turn")
        return text[: text.rindex(end)].replace(end, "")

    def _marked(self, text: str, mark: str) -> str:
        """Put a mark inside every spelling of a control token, so that none is whole."""
        if not any(token in text for token in self._control_tokens):
            return text
        pieces, start = [], 0
        for spelling in self._spelling.finditer(text):
            pieces.append(text[start : spelling.start() + 1])
            start = spelling.start() + 1
        return mark.join([*pieces, text[start:]])
