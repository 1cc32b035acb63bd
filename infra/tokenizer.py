"""Chat template and tokenizer of one model (skeleton)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.ports import Clock
from schemas.assembler import TokenDecoder
from schemas.dialects.canonical import CanonicalMessage


class UnrenderablePrompt(Exception):
    """The model's chat template refuses these messages; the gateway answers 400."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt, cut where user text would have formed a control token."""

    pieces: tuple[str, ...]

    def __len__(self) -> int:
        """Return the characters of the prompt (at most this many UTF-8 code points)."""
        return sum(map(len, self.pieces))


class Tokenizer:
    """One model's template and tokenizer; safe to share between threads."""

    eos_ids: frozenset[int]
    template_hash: str

    @classmethod
    def load(cls, model_path: Path, clock: Clock | None = None) -> "Tokenizer":
        """Read a model folder; raises StartupError."""
        raise NotImplementedError

    def render(self, messages: Sequence[CanonicalMessage]) -> Prompt:
        """Apply the chat template; a last turn that is `continued` stays open. Raises UnrenderablePrompt."""
        raise NotImplementedError

    def encode(self, prompt: Prompt) -> list[int]:
        """Return token ids; releases the GIL. Call it off the event loop."""
        raise NotImplementedError

    def decoder(self) -> TokenDecoder:
        """Return a fresh incremental decoder."""
        raise NotImplementedError
