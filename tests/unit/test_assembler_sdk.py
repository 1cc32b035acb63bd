"""The official SDKs read what the assembler writes: stream and body come to the same message."""

import anthropic
import httpx2
import openai
import pytest
from msgspec.structs import replace

from schemas.assembler.sse import COMMENT, json_bytes
from schemas.dialects import anthropic as anthropic_dialect
from schemas.dialects import openai as openai_dialect
from schemas.dialects.canonical import InvalidRequest
from schemas.dialects.models import ModelCard, model_list
from schemas.replies import Stop, StopReason
from tests.assembler_cases import (
    ANTHROPIC,
    END,
    OPENAI,
    SPECIAL_TOKEN,
    assembler,
    run_whole,
    token_ids,
)

TEXT = "Grüße 🙂\nStadt"
STOPS = [
    END,
    Stop(reason=StopReason.LENGTH),
    Stop(reason=StopReason.STOP_SEQUENCE, stop_sequence="Stadt"),
    Stop(reason=StopReason.REFUSAL),
]


def transport(stream: bytes, body: object, status: int = 200) -> httpx2.MockTransport:
    """Answer streamed requests with `stream` and others with `body`."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        if b'"stream":true' in request.content.replace(b" ", b""):
            headers = {"content-type": "text/event-stream; charset=utf-8"}
            return httpx2.Response(200, headers=headers, content=stream)
        headers = {"content-type": "application/json"}
        return httpx2.Response(status, headers=headers, content=json_bytes(body))

    return httpx2.MockTransport(answer)


def anthropic_client(stream: bytes, body: object, status: int = 200) -> anthropic.Anthropic:
    """Return the SDK with this server behind it."""
    http = httpx2.Client(transport=transport(stream, body, status))
    return anthropic.Anthropic(
        api_key="k", base_url="http://millstream", http_client=http, max_retries=0
    )


def openai_client(stream: bytes, body: object, status: int = 200) -> openai.OpenAI:
    """Return the SDK with this server behind it."""
    http = httpx2.Client(transport=transport(stream, body, status))
    return openai.OpenAI(
        api_key="k", base_url="http://millstream/v1", http_client=http, max_retries=0
    )


@pytest.mark.parametrize("stop", STOPS, ids=[stop.reason.value for stop in STOPS])
def test_anthropic_stream_helper_ends_with_the_body(stop: Stop) -> None:
    """`messages.stream()` accumulates exactly the message that `messages.create()` returns."""
    header = replace(ANTHROPIC, stop=("Stadt",))
    events, body = run_whole(header, [token_ids(TEXT), [SPECIAL_TOKEN]], stop)
    stream = b"".join(COMMENT + event.payload for event in events)
    with anthropic_client(stream, body) as client:
        whole = client.messages.create(
            model="tiny", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
        )
        with client.messages.stream(
            model="tiny", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
        ) as running:
            text = "".join(running.text_stream)
            final = running.get_final_message()
    exclude = {"content": {"__all__": {"parsed_output"}}}
    assert final.model_dump(exclude=exclude) == whole.model_dump(exclude=exclude)
    assert text == "".join(block.text for block in whole.content if block.type == "text")
    assert whole.usage.input_tokens == 25


@pytest.mark.parametrize("stop", STOPS[:1] + STOPS[2:3], ids=["end", "stop_sequence"])
def test_openai_stream_helper_ends_with_the_body(stop: Stop) -> None:
    """`chat.completions.stream()` accumulates exactly what `create()` returns, usage included."""
    header = replace(OPENAI, stop=("Stadt",))
    events, body = run_whole(header, [token_ids(TEXT), [SPECIAL_TOKEN]], stop)
    stream = b"".join(COMMENT + event.payload for event in events)
    with openai_client(stream, body) as client:
        whole = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}]
        )
        with client.chat.completions.stream(
            model="tiny",
            messages=[{"role": "user", "content": "hi"}],
            stream_options={"include_usage": True},
        ) as running:
            final = running.get_final_completion()
    seen, expected = final.to_dict(), whole.to_dict()
    assert seen["usage"] == expected["usage"]
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason
    assert (final.id, final.created, final.model, final.service_tier) == (
        *(whole.id, whole.created, whole.model, whole.service_tier),
    )


def test_error_in_the_middle_of_a_stream_raises_in_both_sdks() -> None:
    """A failed reply never looks complete."""
    for header in (ANTHROPIC, OPENAI):
        reply = assembler(header)
        events = [*reply.opening(), *reply.feed(0, token_ids("part"))]
        events.append(reply.error_event(500, "the engine failed", "req_1"))
        stream = b"".join(event.payload for event in events)
        if header is ANTHROPIC:
            with (
                anthropic_client(stream, {}) as client,
                pytest.raises(anthropic.APIStatusError, match="the engine failed"),
                client.messages.stream(
                    model="tiny", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
                ) as running,
            ):
                running.get_final_message()
        else:
            with (
                openai_client(stream, {}) as other,
                pytest.raises(openai.APIError, match="the engine failed"),
            ):
                list(
                    other.chat.completions.create(
                        model="tiny", messages=[{"role": "user", "content": "hi"}], stream=True
                    )
                )


def test_refusals_reach_the_sdks_with_type_code_and_param() -> None:
    """Error bodies of both dialects are read by both SDKs."""
    invalid = InvalidRequest("max_tokens", "must be greater than or equal to 1")
    body = anthropic_dialect.invalid_body(invalid, "req_1")
    with (
        anthropic_client(b"", body, 400) as client,
        pytest.raises(anthropic.BadRequestError, match="max_tokens: must be") as refused,
    ):
        client.messages.create(model="m", max_tokens=1, messages=[])
    assert refused.value.type == "invalid_request_error"
    body = openai_dialect.invalid_body(invalid, "req_1")
    with (
        openai_client(b"", body, 400) as other,
        pytest.raises(openai.BadRequestError, match="max_tokens: must be") as bad,
    ):
        other.chat.completions.create(model="m", messages=[])
    assert (bad.value.param, bad.value.type) == ("max_tokens", "invalid_request_error")


def test_one_list_of_models_is_read_by_both_sdks() -> None:
    """The union shape pages in Anthropic's SDK and lists in OpenAI's."""
    card = ModelCard(
        id="tiny", display_name="Tiny", created_ms=1_000, max_input_tokens=9, max_tokens=9
    )
    body = model_list([card], {})
    with anthropic_client(b"", body) as client:
        assert [(model.id, model.max_input_tokens) for model in client.models.list()] == [
            ("tiny", 9)
        ]
    with openai_client(b"", body) as other:
        assert [(model.id, model.created) for model in other.models.list()] == [("tiny", 1)]
