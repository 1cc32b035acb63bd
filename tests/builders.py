"""Builders of events for tests: valid by default, each argument overrides one fact."""

from schemas.ids import Locator
from schemas.replies import (
    ChoiceTokens,
    Closed,
    CloseReason,
    Delta,
    StageTimes,
    Start,
    Stop,
    StopReason,
    Terminal,
)
from schemas.requests import (
    Dialect,
    Identity,
    Placement,
    ReplyHeader,
    RequestAccepted,
    Sampling,
)

REQUEST_ID = "00000000-0000-4000-8000-000000000001"
STAGES = StageTimes(taken_ms=1, started_ms=2, first_token_ms=3, finished_ms=4)


def header(
    *,
    dialect: Dialect = Dialect.OPENAI,
    stream: bool = True,
    include_usage: bool = False,
    stop: tuple[str, ...] = (),
    prompt_tokens: int = 3,
    max_tokens: int = 16,
    clipped: bool = False,
    choices: int = 1,
    logprobs: int | None = None,
) -> ReplyHeader:
    """Return a reply header."""
    return ReplyHeader(
        dialect=dialect,
        dialect_version="2023-06-01",
        stream=stream,
        include_usage=include_usage,
        model_shown="model",
        stop=stop,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        clipped=clipped,
        created_ms=1_700_000_000_000,
        choices=choices,
        logprobs=logprobs,
    )


def identity(org: str = "org") -> Identity:
    """Return an identity of `org`."""
    return Identity(org=org, workspace="default", key_id="key")


def placement(pool: str = "pool") -> Placement:
    """Return a placement in `pool`."""
    return Placement(alias="model", model="model", model_version="v1", pool=pool)


def start(
    attempt: str = "a",
    request_id: str = REQUEST_ID,
    *,
    choices: int = 1,
    worker: str = "worker-0/1",
    alone: bool = False,
) -> Start:
    """Return a start of `attempt` by the incarnation `worker`."""
    return Start(
        request_id=request_id,
        attempt=attempt,
        worker=worker,
        alone=alone,
        header=header(choices=choices),
        identity=identity(),
        placement=placement(),
    )


def delta(
    first_index: int,
    *token_ids: int,
    attempt: str = "a",
    request_id: str = REQUEST_ID,
    ends_with: tuple[int, ...] | None = None,
    reason: StopReason = StopReason.END,
) -> Delta:
    """Return a delta; `ends_with` makes it the terminal that carries these ids of the reply."""
    stop = Stop(reason=reason) if ends_with is not None else None
    terminal = None
    if ends_with is not None:
        terminal = Terminal(
            stops=(Stop(reason=reason),),
            stages=STAGES,
            tokens=(ChoiceTokens(segment=0, choice=0, token_ids=ends_with),),
        )
    return Delta(
        request_id=request_id,
        attempt=attempt,
        segment=0,
        choice=0,
        first_index=first_index,
        token_ids=token_ids,
        cached_tokens=0 if first_index == 0 else None,
        stop=stop,
        terminal=terminal,
    )


def closed(
    reason: CloseReason = CloseReason.CANCELLED, request_id: str = REQUEST_ID, org: str = "org"
) -> Closed:
    """Return a close."""
    return Closed(
        request_id=request_id,
        reason=reason,
        by="gateway-0/1",
        header=header(),
        identity=identity(org),
        placement=placement(),
    )


def request(
    request_id: str = REQUEST_ID,
    *,
    partition: int = 0,
    floor: int = 0,
    lane: int = 0,
    admit_by_ms: int = 10**15,
    deadline_ms: int = 10**15,
    max_tokens: int = 16,
    prompt: tuple[int, ...] = (1, 2, 3),
    org: str = "org",
    choices: int = 1,
    logprobs: int | None = None,
    grammar: str | None = None,
    stream: bool = True,
) -> RequestAccepted:
    """Return a request."""
    return RequestAccepted(
        request_id=request_id,
        locator=Locator(cell=0, incarnation=7, partition=partition, floor=floor),
        lane=lane,
        admit_by_ms=admit_by_ms,
        deadline_ms=deadline_ms,
        gateway="gateway-0/1",
        seed=1,
        prompt_token_ids=prompt,
        sampling=Sampling(
            max_tokens=max_tokens, ignore_eos=grammar is None, choices=choices, logprobs=logprobs
        ),
        header=header(
            stream=stream,
            prompt_tokens=len(prompt),
            max_tokens=max_tokens,
            choices=choices,
            logprobs=logprobs,
        ),
        identity=identity(org),
        placement=placement(),
        grammar=grammar,
    )
