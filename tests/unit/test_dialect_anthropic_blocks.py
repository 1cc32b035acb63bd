"""Anthropic's blocks, thinking, formats and caching: what is read, and what is refused."""

import pytest

from schemas.dialects.anthropic import VERSIONS, parse
from schemas.dialects.canonical import OutputFormat, Thinking
from tests.unit.test_dialect_anthropic_tools import (
    ASK,
    BREAK,
    RESULT,
    SCHEMA,
    TOOL,
    refusal,
    request,
    said,
    text,
)

OLD, NEW = VERSIONS
LONG_BREAK: dict[str, object] = {"type": "ephemeral", "ttl": "1h"}


def test_thinking_is_kept_where_we_signed_it_and_dropped_elsewhere() -> None:
    """Foreign, unsigned and redacted thinking never refuses a history."""
    blocks = [
        {"type": "thinking", "thinking": "ours", "signature": "good"},
        {"type": "thinking", "thinking": "theirs", "signature": "bad"},
        {"type": "redacted_thinking", "data": "x"},
        text("so"),
    ]
    body = request(ASK, said("assistant", *blocks), ASK)
    read = parse(body, NEW, verify=lambda thinking, signature: signature == "good")
    assert (read.messages[1].thinking, read.messages[1].text) == ("ours", "so")
    assert parse(body, NEW).messages[1].thinking is None
    only = request(ASK, said("assistant", *blocks[1:3]), ASK)
    assert [turn.role for turn in parse(only, NEW).messages] == ["user", "assistant", "user"]


def test_empty_replies_may_come_back() -> None:
    """A reply without content, as the API gives after tool results, stands in a history."""
    read = parse(request(ASK, {"role": "assistant", "content": []}, ASK), NEW)
    assert [turn.text for turn in read.messages] == ["hi", "", "hi"]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (
            {"type": "enabled", "budget_tokens": 1_024},
            Thinking(enabled=True, budget_tokens=1_024),
        ),
        ({"type": "adaptive", "display": "omitted"}, Thinking(enabled=True, shown=False)),
        ({"type": "between_tools"}, Thinking(enabled=True)),
        ({"type": "disabled"}, Thinking(enabled=False)),
        (None, None),
    ],
)
def test_thinking_wishes_are_read(given: object, read: Thinking | None) -> None:
    """Only `enabled` has a budget; silence is not `disabled`."""
    assert parse(request(thinking=given), NEW).thinking == read


@pytest.mark.parametrize(
    "changes",
    [
        {"thinking": {"type": "enabled"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1_023}},
        {"thinking": {"type": "enabled", "budget_tokens": 2_000}},
        {"thinking": {"type": "disabled", "display": "omitted"}},
        {"thinking": {"type": "adaptive", "display": "loud"}},
        {"thinking": {"type": "deep"}},
        {
            "thinking": {"type": "enabled", "budget_tokens": 1_024},
            "tools": [TOOL],
            "tool_choice": {"type": "any"},
        },
        {
            "thinking": {"type": "enabled", "budget_tokens": 1_024},
            "messages": [ASK, {"role": "assistant", "content": "So"}],
        },
    ],
)
def test_thinking_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    """Budgets have bounds, and a forced tool or a prefill leaves no place to think."""
    assert refusal(request(**changes)).startswith(("thinking", "max_tokens"))


def test_formats_are_read_in_both_spellings() -> None:
    """`output_config.format` and the older `output_format` ask for the same."""
    form = {"type": "json_schema", "schema": SCHEMA}
    read = parse(request(output_config={"format": form, "effort": "low"}), NEW).output
    assert read == OutputFormat(
        kind="json_schema", schema=SCHEMA, path="output_config.format.schema"
    )
    read = parse(request(output_format=form), OLD).output
    assert read == OutputFormat(kind="json_schema", schema=SCHEMA, path="output_format.schema")
    assert parse(request(output_config={"effort": "max", "format": None}), NEW).output is None
    for bad in (
        {"output_config": {"effort": "much"}},
        {"output_config": {"task_budget": {"type": "tokens"}}},
        {"output_config": {"format": {"type": "text"}}},
        {"output_config": {"format": {"type": "json_schema"}}},
        {"output_config": {"format": form}, "output_format": form},
    ):
        assert refusal(request(**bad)).startswith("output_")


def test_documents_and_search_results_are_shown_as_text() -> None:
    """What is plain text in them reaches the model with its title."""
    plain = {"type": "text", "media_type": "text/plain", "data": "words"}
    found = {
        "type": "search_result",
        "source": "s",
        "title": "t",
        "content": [text("c")],
        "citations": {"enabled": False},
    }
    read = parse(
        request(
            said(
                "user",
                {"type": "document", "source": plain, "title": "T", "context": "C"},
                {"type": "document", "source": {"type": "content", "content": [text("x")]}},
                found,
            )
        ),
        NEW,
    )
    assert read.messages[0].text == ("Title: T\nContext: C\nwords\nx\nTitle: t\nSource: s\nc")


@pytest.mark.parametrize(
    "block",
    [
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf"}},
        {"type": "document", "source": {"type": "url", "url": "u"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/html", "data": "a"}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "image"}]}},
        {
            "type": "document",
            "source": {"type": "content", "content": "a"},
            "citations": {"enabled": True},
        },
        {"type": "search_result", "source": "s", "title": "t", "content": "c"},
        text("a", citations=[{"type": "char_location"}]),
    ],
)
def test_what_is_not_text_or_asks_for_citations_is_refused(block: object) -> None:
    """The refusal names the block."""
    assert refusal(request(said("user", block))).startswith("messages.0.content.0")


def test_the_newer_version_takes_no_documents_from_the_assistant() -> None:
    """Citations of earlier replies may come back; a document there is refused by 2026-10-21."""
    plain = {"type": "document", "source": {"type": "content", "content": "a"}}
    body = request(ASK, said("assistant", plain), ASK)
    assert parse(body, OLD).messages[1].text == "a"
    assert refusal(body).startswith("messages.1.content.0: document blocks")
    parse(request(ASK, said("assistant", text("a", citations=[{}])), ASK), NEW)


def test_cache_breakpoints_are_bounded_and_ordered() -> None:
    """At most four, the longer-lived first, in the order tools, system, messages."""
    marked = text("a", cache_control=BREAK)
    parse(request(system=[marked] * 4), NEW)
    assert refusal(request(system=[marked] * 4, cache_control=BREAK)) == (
        "A maximum of 4 blocks with cache_control may be provided. Found 5."
    )
    four = request(said("user", *[marked] * 4), cache_control=BREAK)
    parse(four, NEW)  # the last block is marked already
    assert "cache_control" in refusal(four | {"cache_control": LONG_BREAK})
    long = text("a", cache_control=LONG_BREAK)
    parse(request(said("user", long, marked)), NEW)
    for body in (
        request(said("user", marked, long)),
        request(said("user", long), tools=[TOOL | {"cache_control": BREAK}]),
        request(said("user", marked), ASK, cache_control=LONG_BREAK),
        request(said("user", text("a", cache_control={"type": "ephemeral", "ttl": "2h"}))),
        request(said("user", RESULT | {"content": [text("a", cache_control=[])]})),
    ):
        assert "cache_control" in refusal(body)
    thought = {"type": "thinking", "thinking": "a", "signature": "s", "cache_control": BREAK}
    assert "thinking" in refusal(request(ASK, said("assistant", thought), ASK))
