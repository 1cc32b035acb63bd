"""What the gateway asks of a worker: the RequestAccepted event and its parts.

Facts only; decisions stand in fold.py, usage.py and the upper packages. Fields marked *reserved*
are null until the feature that fills them (design section 4).
"""

from enum import StrEnum

from msgspec import Struct

from schemas.ids import Locator


class Dialect(StrEnum):
    """Which API the client speaks; decides the shape of what is sent, never what is generated."""

    ANTHROPIC = "anthropic"
    """POST /v1/messages."""
    OPENAI = "openai"
    """POST /v1/chat/completions."""
    COMPLETIONS = "openai_completions"
    """POST /v1/completions."""
    RESPONSES = "openai_responses"
    """POST /v1/responses."""


class RequestClass(StrEnum):
    """Strict scheduling order: interactive work goes before batch work."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


class Identity(Struct, frozen=True, kw_only=True):
    """Who asked; billing follows it, so it travels in payloads, never only in headers."""

    org: str
    workspace: str
    key_id: str
    user: str | None = None


class Placement(Struct, frozen=True, kw_only=True):
    """What was asked for and what serves it."""

    alias: str
    model: str
    model_version: str
    pool: str
    region: str | None = None
    rollout_arm: str | None = None
    control_revision: int | None = None
    price_book_version: str | None = None


class LogitBias(Struct, frozen=True, kw_only=True):
    """What is added to one token's logit before it may be drawn, -100 to 100."""

    token_id: int
    bias: float


class Sampling(Struct, frozen=True, kw_only=True):
    """How tokens are drawn. Names and ranges are vLLM's `SamplingParams`."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 = no limit."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """How many top log probabilities to report beside the drawn token's; None = report none."""
    choices: int = 1
    """Each choice is a run of its own, seeded with the request's seed plus its index."""
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    """Texts that the reply must not contain."""
    logit_bias: tuple[LogitBias, ...] = ()


class ReplyHeader(Struct, frozen=True, kw_only=True):
    """All that a reader needs, beside token ids, to show a reply; repeated in every start and
    close."""

    dialect: Dialect
    dialect_version: str
    stream: bool
    include_usage: bool
    model_shown: str
    stop: tuple[str, ...]
    prompt_tokens: int
    max_tokens: int
    clipped: bool
    """True where max_tokens was cut to what the context window leaves."""
    created_ms: int
    choices: int = 1
    tool_parser: str | None = None
    """Form in which the reply's tool calls are written; None = all of it is text."""
    reasoning_parser: str | None = None
    """Form in which the reply's thinking is written; None = the model does not think aloud."""
    reasoning_shown: bool = True
    """False where the client asked to be spared the thinking's text."""
    logprobs: int | None = None
    """As `Sampling.logprobs`."""
    echo: str | None = None
    """JSON object of members of the request that this dialect's reply repeats."""


class Span(Struct, frozen=True, kw_only=True):
    """Origin of a run of prompt tokens. Reserved."""

    first_index: int
    count: int
    origin: str


class RequestAccepted(Struct, frozen=True, kw_only=True):
    """A request on its way to a lane of `requests.<pool>.<class>.v1`."""

    request_id: str
    locator: Locator
    lane: int
    admit_by_ms: int
    """Appended after this (broker's time) with an empty fold: closed as late."""
    deadline_ms: int
    gateway: str
    """Incarnation of the gateway that waits, `gateway-0/<uuid>`."""
    seed: int
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    header: ReplyHeader
    identity: Identity
    placement: Placement
    request_class: RequestClass = RequestClass.INTERACTIVE
    priority: int = 0
    resumable: bool = False
    keyed: bool = False
    grammar: str | None = None
    """JSON object with one member that the reply must follow: `json_schema`, `json_object` (true),
    `regex`, `choice` (a list of texts) or `lark` (a grammar in llguidance's Lark)."""
    traceparent: str | None = None
    canonical_request: str | None = None
    spans: tuple[Span, ...] | None = None
