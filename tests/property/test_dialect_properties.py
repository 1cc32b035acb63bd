"""Whatever JSON comes, the dialects read it or refuse it; nothing else is ever raised."""

import copy
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.assembler.sse import json_bytes
from schemas.dialects import anthropic, completions, embeddings, openai, responses
from schemas.dialects.canonical import CanonicalRequest, InvalidRequest
from schemas.dialects.embeddings import EmbeddingRequest
from schemas.tool_prompt import described_turns, native_tools, native_turns, renditions
from tests.dialect_bodies import BODIES, parse_counted

BOUNDED = settings(max_examples=80, deadline=None)
Parse = Callable[[object, str], CanonicalRequest | EmbeddingRequest]
PARSERS: dict[str, list[Parse]] = {
    "anthropic": [anthropic.parse, parse_counted],
    "openai": [openai.parse],
    "completions": [completions.parse],
    "responses": [responses.parse],
    "embeddings": [embeddings.parse],
}
DIALECTS = {
    "anthropic": anthropic,
    "openai": openai,
    "completions": completions,
    "responses": responses,
    "embeddings": embeddings,
}
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**300),
    st.floats(),
    st.text(st.characters(), max_size=5),
    st.sampled_from(
        [
            *("user", "assistant", "system", "tool", "text", "ephemeral", "disabled", "\ud800"),
            *("tool_use", "tool_result", "thinking", "document", "content", "function", "enabled"),
            *("function_call", "function_call_output", "json_schema", "auto", "any", "required"),
            *("[" * 5_000, "{}", '{"a": 1}', '{"a": 1e999}', "call_1", "toolu_1"),
        ]
    ),
)
KEYS = st.sampled_from(
    [
        *("type", "text", "role", "content", "name", "id", "input", "schema", "tools", "format"),
        *("function", "arguments", "tool_calls", "tool_call_id", "tool_use_id", "cache_control"),
        *("source", "data", "thinking", "signature", "is_error", "call_id", "output", "mode"),
    ]
)
JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(), inner, max_size=5)
    ),
    max_leaves=25,
)


def places(value: object) -> list[tuple[object, object]]:
    """Return every container in a JSON value with each of its keys or indexes."""
    found: list[tuple[object, object]] = []
    if isinstance(value, dict | list):
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            found.append((value, key))
            found += places(value[key])
    return found


@st.composite
def spoilt(draw: st.DrawFn, body: dict[str, object]) -> dict[str, object]:
    """Draw a good body of which one or two members are replaced, dropped, doubled or added."""
    changed = copy.deepcopy(body)
    for _ in range(draw(st.integers(1, 2))):
        container, key = draw(st.sampled_from(places(changed)))
        other, source = draw(st.sampled_from(places(changed)))
        how = draw(st.sampled_from(["replace", "drop", "move", "add", "double"]))
        if isinstance(container, dict):
            if how == "drop":
                del container[key]
            elif how == "add":
                container[draw(KEYS | st.text(max_size=3))] = draw(JSON)
            elif how == "move" and isinstance(other, dict):
                container[key] = copy.deepcopy(other[source])
            else:
                container[key] = draw(JSON)
        elif isinstance(container, list) and isinstance(key, int):
            if how == "drop":
                del container[key]
            elif how == "double":
                container.insert(key, copy.deepcopy(container[key]))
            elif how == "move":
                container.append(container.pop(key))
            else:
                container[key] = draw(JSON)
        if not changed:
            break
    return changed


def check(name: str, body: object, version: str) -> None:
    """Read a body by a dialect; what is read makes prompts, what is refused makes an error."""
    for read in PARSERS[name]:
        try:
            request = read(body, version)
        except InvalidRequest as refused:
            assert refused.message
            assert 400 <= refused.status < 500
            json_bytes(DIALECTS[name].invalid_body(refused, "req_1"))
            continue
        if isinstance(request, CanonicalRequest):
            assert request.messages or request.prompt is not None
            json_bytes(request)
            plain = str
            for turns in renditions(request.messages, has_tools=bool(request.tools)):
                native_turns(turns, plain)
                described_turns(turns, request.tools, plain)
            native_tools(request.tools, plain)


@pytest.mark.parametrize("name", sorted(PARSERS))
@BOUNDED
@given(body=JSON | st.dictionaries(KEYS, JSON, max_size=3))
def test_any_json_is_read_or_refused(name: str, body: object) -> None:
    """Every refusal has a message and a body that can be encoded."""
    check(name, body, anthropic.VERSIONS[0])


@pytest.mark.parametrize("name", sorted(PARSERS))
@BOUNDED
@given(data=st.data(), version=st.sampled_from(anthropic.VERSIONS))
def test_good_bodies_with_faults_are_read_or_refused(
    name: str, data: st.DataObject, version: str
) -> None:
    """What is read can be written to the log and shown to every template."""
    body = data.draw(st.sampled_from(BODIES[name]))
    check(name, data.draw(spoilt(body)), version)


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_the_good_bodies_are_good(name: str) -> None:
    """The faults above are faults of bodies that are read as they are."""
    for body in BODIES[name]:
        for read in PARSERS[name]:
            read(body, anthropic.VERSIONS[0])
