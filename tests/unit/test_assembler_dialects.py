"""What the dialects say beside a reply's parts: ids, counts, echoes, what is hidden."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.assembler import Assembler
from schemas.assembler.item_ids import item_id
from schemas.assembler.sse import COMMENT
from schemas.replies import Stop, StopReason, TokenLogprob
from schemas.requests import ReplyHeader
from tests.assembler_cases import (
    ANTHROPIC,
    COMPLETIONS,
    END,
    OPENAI,
    RESPONSES,
    ByteDecoder,
    assembler,
    data_of,
    decoded,
    run_whole,
    token_ids,
)

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
THOUGHT = "<think>\nhm\n</think>\n\nYes"


def only_choice(data: dict[str, object]) -> Any:
    """Return the one choice of a body or a chunk."""
    choices = data["choices"]
    assert isinstance(choices, list)
    (choice,) = choices
    return choice


@pytest.mark.parametrize("header", [COMPLETIONS, RESPONSES], ids=["completions", "responses"])
def test_openai_streams_are_kept_alive_by_comments(header: ReplyHeader) -> None:
    """The SDK takes every event for JSON, before the first one and after it."""
    reply = assembler(header)
    assert reply.keepalive() == COMMENT
    reply.opening()
    assert reply.keepalive() == COMMENT


def test_ids_of_calls_are_a_function_of_their_place() -> None:
    """Assembled again, a reply has the same ids; no two calls of any replies share one."""
    first = run_whole(replace(ANTHROPIC, tool_parser="hermes"), [token_ids(CALL + CALL)])
    assert run_whole(replace(ANTHROPIC, tool_parser="hermes"), [token_ids(CALL + CALL)]) == first
    ids = {
        item_id(prefix, reply, choice, index)
        for prefix in ("call_", "toolu_")
        for reply in ("msg_1", "msg_11")
        for choice in (0, 1, 11)
        for index in range(12)
    }
    assert len(ids) == 2 * 2 * 3 * 12
    assert all(len(each.partition("_")[2]) == 24 for each in ids)


def test_choices_call_tools_by_themselves() -> None:
    """Each choice counts its calls from 0 and ends for its own reason."""
    header = replace(OPENAI, tool_parser="hermes", choices=2)
    reply = assembler(header)
    events = [*reply.opening(), *reply.feed(1, token_ids(CALL)), *reply.feed(0, token_ids("no"))]
    events += reply.finish((END, END))
    choices = decoded(reply.body())["choices"]
    assert isinstance(choices, list)
    assert [choice["finish_reason"] for choice in choices] == ["stop", "tool_calls"]
    assert choices[0]["message"]["content"] == "no"
    assert choices[1]["message"]["content"] is None
    assert [call["function"]["name"] for call in choices[1]["message"]["tool_calls"]] == ["f"]


@pytest.mark.parametrize(
    ("stop", "anthropic", "openai"),
    [
        (Stop(reason=StopReason.END), "tool_use", "tool_calls"),
        (Stop(reason=StopReason.LENGTH), "max_tokens", "length"),
        (Stop(reason=StopReason.STOP_SEQUENCE, stop_sequence="x"), "stop_sequence", "stop"),
        (Stop(reason=StopReason.REFUSAL), "refusal", "content_filter"),
    ],
)
def test_a_reply_awaits_tools_where_it_ended_by_itself(
    stop: Stop, anthropic: str, openai: str
) -> None:
    """Whole calls make the reason; a reply that something else ended says what."""
    ids = token_ids(CALL)
    _, message = run_whole(replace(ANTHROPIC, tool_parser="hermes"), [ids], stop)
    assert message["stop_reason"] == anthropic
    _, completion = run_whole(replace(OPENAI, tool_parser="hermes"), [ids], stop)
    assert isinstance(completion["choices"], list)
    assert completion["choices"][0]["finish_reason"] == openai


def test_a_call_that_broke_off_awaits_nothing() -> None:
    """Arguments that are no JSON end the call; a client is not told to run it."""
    text = '<tool_call>{"name": "f", "arguments": {"a": True}}'
    _, message = run_whole(replace(ANTHROPIC, tool_parser="hermes"), [token_ids(text)])
    assert message["stop_reason"] == "end_turn"
    content = message["content"]
    assert isinstance(content, list)
    assert [block["type"] for block in content] == ["tool_use", "text"]
    assert content[0]["input"] == {}


def test_large_numbers_reach_the_client_to_the_digit() -> None:
    """Arguments are not read and written again on their way into the body."""
    arguments = '{"a": 123456789012345678901234567890, "b": 1e999, "c": 1.10}'
    text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    _, body = run_whole(replace(ANTHROPIC, tool_parser="hermes"), [token_ids(text)])
    assert isinstance(body["content"], list)
    assert body["content"][0]["input"] == json.loads(arguments)


@pytest.mark.parametrize(
    ("header", "member", "detail"),
    [
        (ANTHROPIC, "output_tokens_details", "thinking_tokens"),
        (OPENAI, "completion_tokens_details", "reasoning_tokens"),
        (RESPONSES, "output_tokens_details", "reasoning_tokens"),
    ],
    ids=["anthropic", "openai", "responses"],
)
def test_thinking_is_counted_with_its_tags(header: ReplyHeader, member: str, detail: str) -> None:
    """A tag that came in several tokens counts as a whole; the answer does not."""
    _, body = run_whole(replace(header, reasoning_parser="think"), [token_ids(THOUGHT)])
    assert isinstance(body["usage"], dict)
    assert body["usage"][member][detail] == len("<think>\nhm\n</think>")


@pytest.mark.parametrize("parser", [None, "think"])
def test_a_prompt_that_is_only_cached_is_answered_by_nothing(parser: str | None) -> None:
    """Whatever its one token was and how it ended: no content, no output, `max_tokens`."""
    header = replace(ANTHROPIC, max_tokens=0, reasoning_parser=parser)
    for ids in ([], token_ids("h"), token_ids("<think>")):
        events, body = run_whole(header, [ids])
        assert body["content"] == [] and body["stop_reason"] == "max_tokens"
        assert isinstance(body["usage"], dict) and body["usage"]["output_tokens"] == 0
        assert all(b"content_block" not in event.payload for event in events)


def test_hidden_thinking_hides_its_log_probabilities() -> None:
    """Numbers name tokens: those of a text that is not shown are not shown either."""
    header = replace(OPENAI, reasoning_parser="think", reasoning_shown=False, logprobs=0)
    reply = assembler(header)
    reply.opening()
    ids = token_ids(THOUGHT)
    reply.feed(0, ids, [TokenLogprob(logprob=-1.0)] * len(ids))
    reply.finish((END,))
    choice = only_choice(decoded(reply.body()))
    shown = "".join(each["token"] for each in choice["logprobs"]["content"])
    assert shown.strip() == choice["message"]["content"] == "Yes"
    assert "reasoning_content" not in choice["message"]


def test_numbers_of_a_stop_string_are_not_shown() -> None:
    """Tokens that are cut from the text are cut from the numbers, in stream and body."""
    header = replace(OPENAI, stop=("END",), logprobs=0)
    reply = assembler(header)
    events = list(reply.opening())
    for token_id in token_ids("ok END"):
        events += reply.feed(0, [token_id], [TokenLogprob(logprob=float("-inf"))])
    stop = Stop(reason=StopReason.STOP_SEQUENCE, stop_sequence="END")
    events += reply.finish((stop,))
    streamed = [
        each
        for event in events[:-2]
        for each in (only_choice(data_of(event))["logprobs"] or {"content": []})["content"]
    ]
    choice = only_choice(decoded(reply.body()))
    assert choice["logprobs"]["content"] == streamed
    assert "".join(each["token"] for each in streamed) == "ok "
    assert {each["logprob"] for each in streamed} == {-9_999.0}


def test_a_response_repeats_what_the_request_said_of_itself() -> None:
    """Instructions, tools and the like are echoed; what the reply is made of is its own."""
    echo = {"instructions": "be kind", "temperature": 0.5, "id": "resp_9", "output": [1]}
    _, body = run_whole(replace(RESPONSES, echo=json.dumps(echo)), [token_ids("a")])
    assert (body["instructions"], body["temperature"]) == ("be kind", 0.5)
    assert body["id"] == "resp_1"
    assert isinstance(body["output"], list)
    assert body["output"][0]["content"][0]["text"] == "a"


def test_missing_functions_are_our_mistake() -> None:
    """A header that needs a signature or texts of tokens asserts that it was given them."""
    ids = token_ids(THOUGHT)
    reply = Assembler(replace(ANTHROPIC, reasoning_parser="think"), "msg_1", ByteDecoder)
    with pytest.raises(AssertionError, match="sign"):
        reply.feed(0, ids)
    reply = Assembler(replace(OPENAI, logprobs=0), "chatcmpl-1", ByteDecoder)
    with pytest.raises(AssertionError, match="token_text"):
        reply.feed(0, [1], [TokenLogprob(logprob=-1.0)])


def test_numbers_that_are_not_by_token_are_not_shown() -> None:
    """A worker that told too few of them harms nobody's text."""
    reply = assembler(replace(OPENAI, logprobs=0))
    reply.opening()
    reply.feed(0, token_ids("ab"), [TokenLogprob(logprob=-1.0)])
    reply.finish((END,))
    choice = only_choice(decoded(reply.body()))
    assert choice["message"]["content"] == "ab"
    assert choice["logprobs"]["content"] == []
