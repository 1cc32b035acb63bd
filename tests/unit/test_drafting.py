"""Drafting an event: what of a request reaches the worker, and what must fit the log."""

import pytest

from gateway.drafting import ReplyForm, ServedModel, Ticket, draft, token_budget
from infra.reply_forms import AUTO, form_of
from schemas import limits
from schemas.dialects.canonical import InvalidRequest, Thinking
from schemas.ids import Locator, RequestId
from schemas.requests import Dialect, LogitBias, RequestAccepted
from tests.gateway_platform import IDENTITY, canonical

MODEL = ServedModel(alias="m", model_version="m-1", pool="test", context_tokens=64)
TICKET = Ticket(
    request_id=RequestId("r"),
    locator=Locator(cell=0, incarnation=1, partition=0, floor=0),
    lane=0,
    seed=7,
    created_ms=1,
    admit_by_ms=2,
    deadline_ms=3,
    gateway="gateway-0/1",
)


def drafted(form: ReplyForm | None = None, **fields: object) -> RequestAccepted:
    """Return the event of a small request with these fields."""
    return draft(canonical(**fields), [1, 2], IDENTITY, MODEL, TICKET, form or ReplyForm())  # type: ignore[arg-type]  # test builder


def test_sampling_reaches_the_worker() -> None:
    """Choices, log probabilities, biases, banned words and stop tokens stand in the sampling."""
    bias = (LogitBias(token_id=3, bias=-1.5),)
    event = drafted(choices=2, logprobs=4, logit_bias=bias, bad_words=("x",), stop_token_ids=(5,))
    sampling = event.sampling
    assert (sampling.choices, sampling.logprobs, sampling.logit_bias) == (2, 4, bias)
    assert (sampling.bad_words, sampling.stop_token_ids) == (("x",), (5,))
    assert (event.header.choices, event.header.logprobs) == (2, 4)


def test_the_form_reaches_worker_and_readers() -> None:
    """The grammar goes to the worker, the parsers into the header that every reader gets."""
    form = ReplyForm(grammar="{}", tool_parser="hermes", reasoning_parser="think")
    event = drafted(form, echo='{"a":1}', thinking=Thinking(enabled=True, shown=False))
    assert event.grammar == "{}"
    assert (event.header.tool_parser, event.header.reasoning_parser) == ("hermes", "think")
    assert (event.header.reasoning_shown, event.header.echo) == (False, '{"a":1}')


def test_the_end_of_a_reply_fits_the_log() -> None:
    """Many choices with log probabilities get fewer tokens each; asking for more is refused."""
    wide = canonical(max_tokens=None, choices=16, logprobs=20)
    kept, clipped = token_budget(wide, 10, limits.PROMPT_TOKENS_MAX)
    assert 0 < kept < limits.REPLY_TOKENS_MAX and not clipped
    with pytest.raises(InvalidRequest) as caught:
        token_budget(canonical(kept + 1, choices=16, logprobs=20), 10, limits.PROMPT_TOKENS_MAX)
    assert caught.value.path == "max_tokens"
    assert token_budget(canonical(kept, choices=16, logprobs=20), 10, 200_000) == (kept, False)


@pytest.mark.parametrize(
    ("dialect", "prompt", "limit"),
    [
        (Dialect.ANTHROPIC, "messages", "max_tokens"),
        (Dialect.OPENAI, "messages", "max_tokens"),
        (Dialect.COMPLETIONS, "prompt", "max_tokens"),
        (Dialect.RESPONSES, "input", "max_output_tokens"),
    ],
)
def test_what_does_not_fit_is_named_as_its_dialect_names_it(
    dialect: Dialect, prompt: str, limit: str
) -> None:
    """A prompt too long and too many tokens wished are told by the member the client sent."""
    raw = "hi" if dialect is Dialect.COMPLETIONS else None
    with pytest.raises(InvalidRequest, match="prompt is too long") as caught:
        token_budget(canonical(1, dialect=dialect, prompt=raw), 64, 64)
    assert caught.value.path == prompt
    wide = canonical(limits.REPLY_TOKENS_MAX, dialect=dialect, choices=16, logprobs=20)
    with pytest.raises(InvalidRequest, match="at most") as caught:
        token_budget(wide, 10, limits.PROMPT_TOKENS_MAX)
    assert caught.value.path == limit


@pytest.mark.parametrize(
    ("template", "tool_parser", "reasoning_parser"),
    [
        ("{{ messages }}", "hermes", None),
        ("<tool_call> {{ messages }} <think>", "hermes", "think"),
        ("<|python_tag|> {{ messages }}", "llama3_json", None),
    ],
)
def test_templates_tell_how_their_models_write(
    template: str, tool_parser: str, reasoning_parser: str | None
) -> None:
    """Unless told otherwise, the form of calls and thoughts is read off the chat template."""
    form = form_of(template, frozenset(), AUTO, AUTO)
    assert (form.tool_parser, form.reasoning_parser) == (tool_parser, reasoning_parser)
    told = form_of(template, frozenset({"<think>"}), "llama3_json", "none")
    assert (told.tool_parser, told.reasoning_parser) == ("llama3_json", None)
    assert told.control_tokens == {"<think>"}
