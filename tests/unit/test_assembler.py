"""The assembler: event order, cursors, stop strings, ends and errors of both dialects."""

import pytest
from msgspec.structs import replace

from schemas.assembler import SseEvent
from schemas.replies import Stop, StopReason
from schemas.requests import ReplyHeader
from tests.assembler_cases import (
    ANTHROPIC,
    END,
    OPENAI,
    SPECIAL_TOKEN,
    assembler,
    body_text,
    data_of,
    run_whole,
    streamed_text,
    token_ids,
)

LENGTH = Stop(reason=StopReason.LENGTH)


def names(events: list[SseEvent]) -> list[str]:
    """Return the `event:` names."""
    return [event.payload.split(b"\n")[0].decode().removeprefix("event: ") for event in events]


def test_anthropic_stream_follows_the_documented_order() -> None:
    """A message starts, its one block opens at the first text, closes, and the counts come last."""
    events, _ = run_whole(ANTHROPIC, [token_ids("hi"), [SPECIAL_TOKEN]])
    assert names(events) == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert data_of(events[-2]) == {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {
            "input_tokens": 25,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 3,
        },
    }


def test_cursors_count_tokens_then_events_since_that_token() -> None:
    """Each event's id says after how many tokens it stands and which one since then it is."""
    events, _ = run_whole(ANTHROPIC, [token_ids("hi"), [SPECIAL_TOKEN]])
    assert [event.cursor for event in events] == [
        *("0-1", "1-1", "1-2", "2-1"),
        *("3-1", "3-2", "3-3"),
    ]


@pytest.mark.parametrize("header", [ANTHROPIC, OPENAI], ids=["anthropic", "openai"])
def test_every_id_line_stands_in_the_event_with_its_data(header: ReplyHeader) -> None:
    """No event has an id without data: SDKs would take it for an empty JSON document."""
    for event in run_whole(header, [token_ids("hé")])[0]:
        head, rest = event.payload.decode().split("id: ", 1)
        assert head == "" or (head.startswith("event: ") and head.endswith("\n"))
        assert rest.startswith(f"{event.cursor}\ndata: ")
        assert rest.endswith("\n\n")
        assert rest.count("\n") == 3


def test_message_start_tells_the_prompt_tokens() -> None:
    """Clients see how long the prompt was before the first token."""
    start = data_of(assembler(ANTHROPIC).opening()[0])["message"]
    assert isinstance(start, dict)
    assert start["usage"]["input_tokens"] == 25
    assert start["usage"]["output_tokens"] == 1
    assert start["content"] == []
    assert start["stop_reason"] is None


def test_reply_without_text_has_no_block() -> None:
    """A reply that ends at once has empty content, not a block that clients cannot send back."""
    events, body = run_whole(ANTHROPIC, [[SPECIAL_TOKEN]])
    assert names(events) == ["message_start", "message_delta", "message_stop"]
    assert body["content"] == []
    assert body["stop_reason"] == "end_turn"


def test_openai_stream_begins_with_the_role_and_ends_with_usage_and_done() -> None:
    """The role comes once, the reason with an empty delta, usage last before [DONE]."""
    events, _ = run_whole(OPENAI, [token_ids("a")])
    role, text, finish, usage = [data_of(event) for event in events[:-1]]
    assert events[-1].payload.endswith(b"data: [DONE]\n\n")
    shared = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000}
    assert all(chunk.items() >= shared.items() for chunk in (role, text, finish, usage))
    assert role["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": "", "refusal": None},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    assert text["choices"] == [
        {"index": 0, "delta": {"content": "a"}, "logprobs": None, "finish_reason": None}
    ]
    assert finish["choices"] == [
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    ]
    assert (role["usage"], text["usage"], finish["usage"]) == (None, None, None)
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 25,
        "completion_tokens": 1,
        "total_tokens": 26,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_openai_chunks_have_no_usage_unless_asked_for() -> None:
    """Clients that did not ask meet neither `usage` nor a chunk without choices."""
    events, _ = run_whole(replace(OPENAI, include_usage=False), [token_ids("a")])
    assert all("usage" not in data_of(event) for event in events[:-1])
    assert all(data_of(event)["choices"] for event in events[:-1])


def test_openai_choices_are_opened_in_order_and_finished_each() -> None:
    """Two choices have their own text, role and reason; their tokens are counted together."""
    reply = assembler(replace(OPENAI, choices=2))
    events = [*reply.opening(), *reply.feed(1, token_ids("b")), *reply.feed(0, token_ids("aa"))]
    events += reply.finish((END, LENGTH))
    indexes = [choice["index"] for event in events[:-1] for choice in _choices(event)]
    assert indexes == [0, 1, 1, 0, 0, 0, 1]
    body = reply.body()
    assert isinstance(body["choices"], list)
    assert [choice["message"]["content"] for choice in body["choices"]] == ["aa", "b"]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "length"]
    assert isinstance(body["usage"], dict)
    assert body["usage"]["completion_tokens"] == 3


def _choices(event: SseEvent) -> list[dict[str, object]]:
    choices = data_of(event)["choices"]
    assert isinstance(choices, list)
    return choices


@pytest.mark.parametrize(
    ("reason", "clipped", "anthropic", "openai"),
    [
        (StopReason.END, False, "end_turn", "stop"),
        (StopReason.LENGTH, False, "max_tokens", "length"),
        (StopReason.LENGTH, True, "model_context_window_exceeded", "length"),
        (StopReason.END, True, "end_turn", "stop"),
        (StopReason.STOP_SEQUENCE, False, "stop_sequence", "stop"),
        (StopReason.REFUSAL, False, "refusal", "content_filter"),
    ],
)
def test_reasons_are_named_as_each_dialect_names_them(
    reason: StopReason, clipped: bool, anthropic: str, openai: str
) -> None:
    """The engine's reason becomes the dialect's, in the stream and in the body."""
    matched = "b" if reason is StopReason.STOP_SEQUENCE else None
    stop = Stop(reason=reason, stop_sequence=matched)
    events, body = run_whole(
        replace(ANTHROPIC, clipped=clipped, stop=("b",)), [token_ids("ab")], stop
    )
    delta = data_of(events[-2])["delta"]
    assert isinstance(delta, dict)
    assert delta["stop_reason"] == body["stop_reason"] == anthropic
    assert delta["stop_sequence"] == body["stop_sequence"] == matched
    assert (body["stop_details"] is not None) == (reason is StopReason.REFUSAL)
    _, body = run_whole(replace(OPENAI, clipped=clipped, stop=("b",)), [token_ids("ab")], stop)
    assert isinstance(body["choices"], list)
    assert body["choices"][0]["finish_reason"] == openai


@pytest.mark.parametrize("header", [ANTHROPIC, OPENAI], ids=["anthropic", "openai"])
def test_stop_string_is_never_shown_however_it_is_cut(header: ReplyHeader) -> None:
    """Neither the stop string nor its beginning is sent, wherever the log's records were cut."""
    ids = token_ids("one END")
    stop = Stop(reason=StopReason.STOP_SEQUENCE, stop_sequence="END")
    for seam in range(len(ids) + 1):
        events, body = run_whole(replace(header, stop=("END",)), [ids[:seam], ids[seam:]], stop)
        assert streamed_text(events) == body_text(body) == "one "


def test_text_held_back_in_vain_is_shown_as_soon_as_it_cannot_match() -> None:
    """Only what may still become a stop string waits."""
    reply = assembler(replace(ANTHROPIC, stop=("END",)))
    reply.opening()
    assert reply.feed(0, token_ids("EN")) == ()
    assert streamed_text(reply.feed(0, token_ids("T"))) == "ENT"


def test_text_held_back_is_shown_at_an_end_of_another_kind() -> None:
    """A reply that ends in half a stop string, or in one the engine let pass, keeps it."""
    for text in ("an E", "an EN", "an END"):
        events, body = run_whole(replace(ANTHROPIC, stop=("END",)), [token_ids(text)], LENGTH)
        assert streamed_text(events) == body_text(body) == text


def test_match_that_min_tokens_let_pass_is_not_cut() -> None:
    """Only the match that ended the reply is cut, not an earlier equal one."""
    stop = Stop(reason=StopReason.STOP_SEQUENCE, stop_sequence="END")
    events, body = run_whole(replace(ANTHROPIC, stop=("END",)), [token_ids("END or END")], stop)
    assert streamed_text(events) == body_text(body) == "END or "


def test_overlapping_stop_strings_are_cut_at_the_one_that_matched() -> None:
    """Where several stop strings overlap, the engine's choice decides what is cut."""
    header = replace(ANTHROPIC, stop=("abab", "bab"))
    for matched, text in (("abab", "x"), ("bab", "xa")):
        stop = Stop(reason=StopReason.STOP_SEQUENCE, stop_sequence=matched)
        assert body_text(run_whole(header, [token_ids("xabab")], stop)[1]) == text


def test_characters_that_end_lines_anywhere_are_escaped() -> None:
    """Clients that split lines as Python does still get one line of JSON."""
    text = "a\u2028b\u2029c\x85d\r\ne"
    for header in (ANTHROPIC, OPENAI):
        events, _ = run_whole(header, [token_ids(text)])
        assert streamed_text(events) == text
        assert all(len(event.payload.decode().splitlines()) <= 4 for event in events)


def test_keepalive_is_a_comment_until_the_message_started_and_always_with_openai() -> None:
    """Pings exist only inside an Anthropic message; OpenAI's SDK takes every event for JSON."""
    for header, after in ((ANTHROPIC, b'event: ping\ndata: {"type":"ping"}\n\n'), (OPENAI, None)):
        reply = assembler(header)
        comment = reply.keepalive()
        assert comment == b": keepalive\n"
        reply.opening()
        assert reply.keepalive() == (after or comment)


def test_error_event_has_the_dialect_shape_and_no_id() -> None:
    """A failure after the 200 is the dialect's error, from which nobody resumes."""
    reply = assembler(ANTHROPIC)
    reply.opening()
    reply.feed(0, token_ids("a"))
    error = reply.error_event(529, "Overloaded", "req_1")
    assert error.cursor == "1-2"
    assert error.payload == (
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error",'
        b'"message":"Overloaded"},"request_id":"req_1"}\n\n'
    )
    assert assembler(OPENAI).error_event(500, "broken", "req_1").payload == (
        b'data: {"error":{"message":"broken","type":"server_error","param":null,"code":null}}\n\n'
    )


def test_order_of_calls_is_asserted() -> None:
    """Tokens after the end, a body before it and a second opening are mistakes of ours."""
    reply = assembler(ANTHROPIC)
    with pytest.raises(AssertionError):
        reply.body()
    reply.opening()
    with pytest.raises(AssertionError):
        reply.opening()
    reply.finish((END,))
    with pytest.raises(AssertionError):
        reply.feed(0, [1])
    with pytest.raises(AssertionError):
        reply.finish((END,))
