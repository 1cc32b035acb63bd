"""Drafting the event of a request: from the canonical form to `RequestAccepted`, pure.

Owns the budget of tokens, sampling and reply header, and which of an event's facts a claim fixes:
two drafts of one body under one ticket are equal to the byte. What the reply's text is held to
comes from `grammars.py`. Called by `submission.py` and `keyed.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from gateway.errors import ModelUnknown
from schemas import limits
from schemas.dialects.canonical import CanonicalRequest, InvalidRequest, shown
from schemas.ids import Locator, RequestId
from schemas.requests import (
    Dialect,
    Identity,
    Placement,
    ReplyHeader,
    RequestAccepted,
    RequestClass,
    Sampling,
)

__all__ = [
    "PLAIN",
    "ReplyForm",
    "ServedModel",
    "Ticket",
    "draft",
    "prompt_member",
    "prompt_too_long",
    "require_model",
    "token_budget",
]

_TOKEN_BYTES = 4
_LOGPROB_BYTES = 16
"""Upper bounds of a token id, and of an id with its log probability, on the log."""
_REPLY_BYTES_MAX = limits.EVENT_BYTES_MAX // 4
"""What the ids and log probabilities of one terminal may take: a step may end several replies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyForm:
    """What the text of a reply is held to, and how it is read back."""

    grammar: str | None = None
    """As `RequestAccepted.grammar`."""
    tool_parser: str | None = None
    reasoning_parser: str | None = None


PLAIN = ReplyForm()
"""Text without tools, thoughts or format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The one model of a pool, as requests name it and as workers serve it."""

    alias: str
    """The id that users send and see."""
    model_version: str
    pool: str
    context_tokens: int
    admit_within_ms: int = limits.ADMIT_WITHIN_MS
    deadline_ms: int = limits.DEADLINE_MS


class Ticket(Struct, frozen=True, kw_only=True):
    """What a request gets from its gateway, once for all copies of its event."""

    request_id: RequestId
    locator: Locator
    lane: int
    seed: int
    created_ms: int
    admit_by_ms: int
    deadline_ms: int
    gateway: str
    keyed: bool = False
    resumable: bool = False


def draft(
    canonical: CanonicalRequest,
    prompt_token_ids: Sequence[int],
    identity: Identity,
    model: ServedModel,
    ticket: Ticket,
    form: ReplyForm = PLAIN,
    request_class: RequestClass = RequestClass.INTERACTIVE,
) -> RequestAccepted:
    """Return the event of a request. Raises InvalidRequest where the prompt is too long."""
    prompt_tokens = len(prompt_token_ids)
    max_tokens, clipped = token_budget(canonical, prompt_tokens, model.context_tokens)
    return RequestAccepted(
        request_id=ticket.request_id,
        locator=ticket.locator,
        lane=ticket.lane,
        admit_by_ms=ticket.admit_by_ms,
        deadline_ms=ticket.deadline_ms,
        gateway=ticket.gateway,
        seed=ticket.seed,
        prompt_token_ids=tuple(prompt_token_ids),
        # An engine makes one token at least; where none was asked for, none is shown or billed.
        sampling=_sampling(canonical, max(1, max_tokens)),
        header=_header(canonical, prompt_tokens, max_tokens, clipped, ticket.created_ms, form),
        identity=identity,
        placement=Placement(
            alias=canonical.model,
            model=model.alias,
            model_version=model.model_version,
            pool=model.pool,
        ),
        request_class=request_class,
        resumable=ticket.resumable,
        keyed=ticket.keyed,
        grammar=form.grammar,
    )


def require_model(model: str, served: str) -> None:
    """Let requests for the served model pass. Raises ModelUnknown, which lists the right ids."""
    if model != served:
        raise ModelUnknown(f"model: {shown(model)} (this platform serves: {served})")


def token_budget(
    canonical: CanonicalRequest, prompt_tokens: int, context_tokens: int
) -> tuple[int, bool]:
    """Return how many tokens may be generated, and whether the context window cut the wish.

    Raises: InvalidRequest where the prompt alone leaves no room for one token, and where choices
        and log probabilities of so many tokens would not fit the log.
    """
    left = context_tokens - prompt_tokens
    if left < 1:
        raise prompt_too_long(canonical, str(prompt_tokens), context_tokens)
    wished = canonical.max_tokens
    kept = _tokens_kept(canonical)
    if wished is None:
        return min(left, kept), False
    if min(wished, left) > kept and kept < limits.REPLY_TOKENS_MAX:
        responses = canonical.dialect is Dialect.RESPONSES
        raise InvalidRequest(
            "max_output_tokens" if responses else "max_tokens",
            f"at most {kept} with this many choices and log probabilities",
        )
    return min(wished, left, kept), wished > left


def prompt_member(canonical: CanonicalRequest) -> str:
    """Return the name of the member that the client's prompt was made of."""
    if canonical.prompt is not None:
        return "prompt"
    return "input" if canonical.dialect is Dialect.RESPONSES else "messages"


def prompt_too_long(
    canonical: CanonicalRequest, shown_tokens: str, context_tokens: int
) -> InvalidRequest:
    """Return the error of a prompt that leaves no room for a reply."""
    # One token of the window is kept for the reply: a prompt that fills it has none to answer.
    text = f"prompt is too long: {shown_tokens} tokens > {context_tokens - 1} maximum"
    member = prompt_member(canonical)
    return InvalidRequest(member, text, message=text, code="context_length_exceeded")


def _tokens_kept(canonical: CanonicalRequest) -> int:
    """Return how many tokens of each choice fit the record that ends the reply."""
    token_bytes = _TOKEN_BYTES
    if canonical.logprobs is not None:
        token_bytes += _LOGPROB_BYTES * (canonical.logprobs + 1)
    return min(limits.REPLY_TOKENS_MAX, _REPLY_BYTES_MAX // (token_bytes * canonical.choices))


def _sampling(canonical: CanonicalRequest, max_tokens: int) -> Sampling:
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=min(canonical.min_tokens, max_tokens),
        temperature=canonical.temperature,
        top_p=canonical.top_p,
        top_k=canonical.top_k,
        min_p=canonical.min_p,
        presence_penalty=canonical.presence_penalty,
        frequency_penalty=canonical.frequency_penalty,
        repetition_penalty=canonical.repetition_penalty,
        stop=canonical.stop,
        ignore_eos=canonical.ignore_eos,
        logprobs=canonical.logprobs,
        choices=canonical.choices,
        stop_token_ids=canonical.stop_token_ids,
        bad_words=canonical.bad_words,
        logit_bias=canonical.logit_bias,
    )


def _header(
    canonical: CanonicalRequest,
    prompt_tokens: int,
    max_tokens: int,
    clipped: bool,
    created_ms: int,
    form: ReplyForm,
) -> ReplyHeader:
    return ReplyHeader(
        dialect=canonical.dialect,
        dialect_version=canonical.dialect_version,
        stream=canonical.stream,
        include_usage=canonical.include_usage,
        model_shown=canonical.model,
        stop=canonical.stop,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        clipped=clipped,
        created_ms=created_ms,
        choices=canonical.choices,
        tool_parser=form.tool_parser,
        reasoning_parser=form.reasoning_parser,
        reasoning_shown=canonical.thinking is None or canonical.thinking.shown,
        logprobs=canonical.logprobs,
        echo=canonical.echo,
    )
