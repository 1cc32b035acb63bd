"""Whatever JSON comes, the dialects read it or refuse it; nothing else is ever raised."""

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.assembler.sse import json_bytes
from schemas.dialects import anthropic, openai
from schemas.dialects.canonical import CanonicalRequest, InvalidRequest

BOUNDED = settings(max_examples=200, deadline=None)
KEYS = st.sampled_from(
    [
        *("model", "messages", "max_tokens", "system", "stop_sequences", "stream", "temperature"),
        *("top_p", "top_k", "metadata", "user_id", "cache_control", "type", "text", "role"),
        *("content", "stop", "stream_options", "include_usage", "max_completion_tokens", "seed"),
        *("tools", "tool_choice", "thinking", "thread", "n", "logit_bias", "response_format"),
        *("min_tokens", "ignore_eos", "user", "name", "tool_calls", "citations", "ttl"),
    ]
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**300),
    st.floats(),
    st.text(st.characters(), max_size=5),
    st.sampled_from(["user", "assistant", "system", "text", "ephemeral", "disabled", "\ud800"]),
)
JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(), inner, max_size=5)
    ),
    max_leaves=25,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]) | JSON, "content": JSON}
)
NEAR = st.fixed_dictionaries(
    {"model": st.just("m"), "messages": st.lists(MESSAGE | JSON, max_size=3) | JSON},
    optional={
        "max_tokens": st.integers(-1, 5) | JSON,
        **dict.fromkeys(("system", "stop", "stop_sequences", "stream", "metadata"), JSON),
        **dict.fromkeys(("temperature", "top_p", "seed", "min_tokens", "thinking"), JSON),
    },
)


@BOUNDED
@given(JSON | NEAR, st.sampled_from(anthropic.VERSIONS))
def test_any_body_is_read_or_refused(body: object, version: str) -> None:
    """Every refusal has a message and a body that can be encoded."""
    for dialect, read in (
        (anthropic, anthropic.parse),
        (anthropic, anthropic.parse_count),
        (openai, openai.parse),
    ):
        try:
            request = read(body, version)
        except InvalidRequest as refused:
            assert refused.message
            assert 400 <= refused.status < 500
            json_bytes(dialect.invalid_body(refused, "req_1"))
        else:
            assert isinstance(request, CanonicalRequest)
            assert request.messages
            for turn in request.messages:
                turn.text.encode()
