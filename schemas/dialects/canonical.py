"""One request in one shape, whichever API it came by, and the error that refuses one.

Owns the shape; the dialects own how it is read. The gateway turns it into prompt and `Sampling`.
"""

from dataclasses import dataclass
from typing import Literal

from schemas.requests import Dialect

Role = Literal["system", "user", "assistant"]

_SHOWN_CHARS_MAX = 200


class InvalidRequest(Exception):
    """A request that is refused before any work; nothing changed.

    Args:
        path: the field, `messages.0.content`; empty where it is the whole body.
        reason: what is wrong with it.
        message: the whole sentence, where the dialect words it differently from `<path>: <reason>`.
        code: the dialect's own error code (OpenAI `error.code`, Anthropic `details.error_code`).
        details: Anthropic's `error.details`.
    """

    def __init__(
        self,
        path: str,
        reason: str,
        status: int = 400,
        *,
        message: str | None = None,
        code: str | None = None,
        details: dict[str, object] | None = None,
    ) -> None:
        self.path, self.reason, self.status = shown(path), shown(reason), status
        self.code, self.details = code, details
        whole = f"{self.path}: {self.reason}" if self.path else self.reason
        self.message = whole if message is None else shown(message)
        super().__init__(self.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalMessage:
    """One turn, as text."""

    role: Role
    text: str
    continued: bool = False
    """True for a last assistant turn that the model is to continue (a prefill), not to answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalRequest:
    """What a client asked for, checked and with defaults filled in."""

    dialect: Dialect
    dialect_version: str
    model: str
    messages: tuple[CanonicalMessage, ...]
    max_tokens: int | None
    """None: up to what the context window leaves."""
    stream: bool = False
    include_usage: bool = False
    stop: tuple[str, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    """Above 0, at most 1."""
    top_k: int = 0
    """0 = no limit."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    min_tokens: int = 0
    """At most `max_tokens` as the client gave it; whoever clips max_tokens clips this too."""
    ignore_eos: bool = False
    user: str | None = None


def shown(text: str) -> str:
    """Return client text fit for an error message: bounded, and encodable whatever it held."""
    cut = text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "..."
    return cut.encode("utf-8", "backslashreplace").decode()
