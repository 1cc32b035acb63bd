"""One request in one shape, whichever API it came by, and the error that refuses one.

Owns the shape; the dialects own how it is read. The gateway turns it into prompt and `Sampling`.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from schemas.requests import Dialect, LogitBias

Role = Literal["system", "user", "assistant", "tool"]

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


class ToolCall(Struct, frozen=True, kw_only=True):
    """A call that the assistant made in an earlier turn."""

    id: str
    name: str
    arguments: str
    """JSON text of an object."""


class Tool(Struct, frozen=True, kw_only=True):
    """A function that the model may ask the client to call."""

    name: str
    description: str | None
    schema: Mapping[str, object]
    """JSON schema of its arguments, an object."""
    strict: bool = False
    """True: a schema that cannot be enforced is refused. False: it is then a description only."""


class ToolChoice(Struct, frozen=True, kw_only=True):
    """Which tools the reply may or must call."""

    mode: Literal["none", "auto", "required", "named"] = "auto"
    names: tuple[str, ...] = ()
    """The tool of `named`; with other modes the only ones allowed, all where empty."""
    parallel: bool = True
    """False: at most one call."""


class OutputFormat(Struct, frozen=True, kw_only=True):
    """What the reply's text must follow."""

    kind: Literal["json_object", "json_schema", "regex", "choice", "lark"]
    schema: Mapping[str, object] | None = None
    """Of `json_schema`."""
    pattern: str | None = None
    """Of `regex` and `lark`."""
    choices: tuple[str, ...] = ()
    """Of `choice`."""
    path: str = ""
    """Where it stood in the request, for errors: `response_format.json_schema.schema`."""


class Thinking(Struct, frozen=True, kw_only=True):
    """The client's wish that the model thinks before it answers."""

    enabled: bool
    budget_tokens: int | None = None
    shown: bool = True


class CanonicalMessage(Struct, frozen=True, kw_only=True):
    """One turn. A `tool` turn is the result of one call."""

    role: Role
    text: str
    continued: bool = False
    """True for a last assistant turn that the model is to continue (a prefill), not to answer."""
    thinking: str | None = None
    """What the assistant thought before `text`, where the client sent it back and we made it."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Of an assistant turn, after `text`."""
    tool_call_id: str | None = None
    """Of a tool turn."""
    tool_name: str | None = None
    """Of a tool turn: the name of the called tool, where known."""
    is_error: bool = False
    """Of a tool turn: the call failed."""


class CanonicalRequest(Struct, frozen=True, kw_only=True):
    """What a client asked for, checked and with defaults filled in."""

    dialect: Dialect
    dialect_version: str
    model: str
    messages: tuple[CanonicalMessage, ...]
    """Empty where `prompt` is given."""
    max_tokens: int | None
    """None: up to what the context window leaves."""
    prompt: str | tuple[int, ...] | None = None
    """Of /v1/completions: text or token ids that are continued as they are, without a template."""
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
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    logit_bias: tuple[LogitBias, ...] = ()
    logprobs: int | None = None
    """How many top log probabilities beside the drawn token's; None = none at all."""
    choices: int = 1
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    output: OutputFormat | None = None
    thinking: Thinking | None = None
    """None where the client said nothing."""
    echo: str | None = None
    """JSON object of members of the request that this dialect's reply repeats."""
    user: str | None = None


def shown(text: str) -> str:
    """Return client text fit for an error message: bounded, and encodable whatever it held."""
    cut = text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "..."
    return cut.encode("utf-8", "backslashreplace").decode()
