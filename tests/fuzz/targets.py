"""What is fuzzed: bytes in, nothing out, and no exception but the one that refuses a request.

Each target says what its bytes mean. A property that must hold beside "does not crash" stands in
the target as an assertion.
"""

import json
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from gateway.bodies import decode_json
from schemas.assembler.parts import Text, Thinking, ToolArguments, ToolCallEnd
from schemas.assembler.splitter import Splitter
from schemas.dialects import anthropic, completions, embeddings, openai, responses
from schemas.dialects.canonical import InvalidRequest
from schemas.dialects.fields import as_object
from schemas.json_schema import check_shape, enforceable
from tests.dialect_bodies import parse_counted

__all__ = ["TARGETS", "Target"]

Target = Callable[[bytes], None]

_TOOL_PARSERS = ("hermes", "llama3_json", None, "hermes")
_REASONING_PARSERS = ("think", "think_open", None, None)
_TOOL = {"name": "f", "input_schema": {"type": "object"}}


def anthropic_bodies(data: bytes) -> None:
    """A body of POST /v1/messages, in both versions, and of count_tokens."""
    for version in anthropic.VERSIONS:
        _refused_or_read(partial(anthropic.parse, version=version), data)
        _refused_or_read(partial(parse_counted, version=version), data)


def openai_bodies(data: bytes) -> None:
    """A body of OpenAI's four paths: most members are shared, so one body reaches all of them."""
    for parse in (openai.parse, completions.parse, responses.parse, embeddings.parse):
        _refused_or_read(partial(parse, version="v1"), data)


def json_schema(data: bytes) -> None:
    """A JSON schema that a reply is to follow, or a tool's; what is enforced must be JSON, too."""
    _refused_or_read(lambda schema: check_shape(as_object(schema, ""), "schema", len(data)), data)
    _refused_or_read(lambda schema: json.dumps(enforceable(schema, "schema")), data)


def tool_results(data: bytes) -> None:
    """A user turn that should answer a tool call, in Anthropic's form."""
    try:
        content = decode_json(data)
    except InvalidRequest:
        return
    call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    body = {
        "model": "m",
        "max_tokens": 1,
        "tools": [_TOOL],
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": content},
        ],
    }
    _refused_or_read(partial(anthropic.parse, version="2023-06-01"), json.dumps(body).encode())


def replies(data: bytes) -> None:
    """The text of a reply: the first byte chooses the parsers and where the text is cut.

    Parts must not depend on the cuts, and what is given as a call's arguments must be JSON.
    """
    if not data:
        return
    form, text = data[0], data[1:].decode("utf-8", "replace")
    parsers: dict[str, str | None] = {
        "tool_parser": _TOOL_PARSERS[form % len(_TOOL_PARSERS)],
        "reasoning_parser": _REASONING_PARSERS[form // 4 % len(_REASONING_PARSERS)],
    }
    size = 1 + form // 16
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    for ended in (False, True):
        assert _split(pieces, parsers, ended) == _split([text], parsers, ended)


def _split(pieces: list[str], parsers: dict[str, str | None], ended: bool) -> list[object]:
    """Return the parts of a reply, which was `ended` or ended itself; neighbours of one kind are
    joined."""
    splitter = Splitter(**parsers)
    parts = [part for piece in pieces for part in splitter.push(piece)] + splitter.end(cut=ended)
    joined: list[object] = []
    for part in parts:
        if isinstance(part, Text | Thinking | ToolArguments):
            assert part.text, "an empty part says nothing"
            last = joined[-1] if joined else None
            if type(last) is type(part):
                assert isinstance(last, Text | Thinking | ToolArguments)
                part = replace(part, text=last.text + part.text)
                joined.pop()
        if isinstance(part, ToolCallEnd) and part.complete:
            assert isinstance(joined[-1], ToolArguments)
            assert isinstance(json.loads(joined[-1].text), dict)
        joined.append(part)
    return joined


def _refused_or_read(parse: Callable[[object], object], data: bytes) -> None:
    """Parse; a refusal must have a message that can be sent."""
    try:
        parse(decode_json(data))
    except InvalidRequest as error:
        assert 400 <= error.status < 500
        assert error.message
        error.message.encode()
        error.path.encode()


TARGETS: dict[str, Target] = {
    "replies": replies,
    "anthropic": anthropic_bodies,
    "json_schema": json_schema,
    "openai": openai_bodies,
    "tool_results": tool_results,
}
