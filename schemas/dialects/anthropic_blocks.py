"""Content blocks of Anthropic's Messages API, read into what a text model can be shown.

Owns what each type of block may hold and which types are refused. Where blocks may stand in a
conversation is decided in `anthropic_turns.py`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from schemas.dialects import fields
from schemas.dialects.anthropic_caching import CacheBreakpoints
from schemas.dialects.canonical import InvalidRequest, ToolCall
from schemas.dialects.json_texts import json_text

Verify = Callable[[str, str], bool]
"""Tells whether a signature is ours for a thinking text."""

_BLOCK_SEPARATOR = "\n"
_TEXT_FIELDS = ("type", "text", "citations", "cache_control")
_RESULT_FIELDS = (*("type", "tool_use_id", "content", "is_error", "cache_control", "toolset_name"),)
_CALL_FIELDS = ("type", "id", "name", "input", "cache_control", "caller", "toolset_name")
_SEARCH_FIELDS = ("type", "source", "title", "content", "citations", "cache_control")
_DOCUMENT_FIELDS = ("type", "source", "title", "context", "citations", "cache_control")
_UNSUPPORTED = frozenset(
    {
        *("image", "server_tool_use", "web_search_tool_result", "web_fetch_tool_result"),
        *("code_execution_tool_result", "bash_code_execution_tool_result", "container_upload"),
        *("text_editor_code_execution_tool_result", "tool_search_tool_result", "tool_reference"),
        *("mcp_tool_use", "mcp_tool_result", "compaction", "fallback", "browser_state"),
    }
)
_IN_USER: Final = ("text", "document", "search_result", "tool_result")
_IN_ASSISTANT: Final = ("text", "document", "thinking", "redacted_thinking", "tool_use")
_IN_RESULT: Final = ("text", "document", "search_result")
_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "user": _IN_USER,
    "assistant": _IN_ASSISTANT,
    "system": ("text",),
}


class Thought(Struct, frozen=True, kw_only=True):
    """What the assistant thought, as we signed it."""

    text: str


class ToolResult(Struct, frozen=True, kw_only=True):
    """What a client's tool answered."""

    tool_use_id: str
    text: str
    is_error: bool
    path: str


Part = str | Thought | ToolCall | ToolResult
"""What one block says to the model."""


class BlockReader:
    """Reads the blocks of one request; counts its cache breakpoints on the way."""

    def __init__(self, *, strict: bool, verify: Verify, breakpoints: CacheBreakpoints) -> None:
        """Take the rules: `strict` is the API version that refuses documents in replies."""
        self._strict = strict
        self._verify = verify
        self._breakpoints = breakpoints

    def parts(self, content: object, path: str, role: str) -> list[Part]:
        """Return what a turn says, in order; empty for no content. Raises InvalidRequest."""
        if isinstance(content, str):
            self._breakpoints.block(None, path)
            return [fields.as_text(content, path)] if content else []
        parts = []
        for index, entry in enumerate(fields.as_blocks(content, path)):
            block_path = f"{path}.{index}"
            block = fields.as_object(entry, block_path)
            kind = _kind(block, block_path, _KINDS[role])
            if kind == "document" and role == "assistant" and self._strict:
                raise InvalidRequest(block_path, "document blocks cannot stand in assistant turns")
            part = self._part(block, block_path, kind, role)
            if part is not None:
                parts.append(part)
        return parts

    def _part(self, block: Mapping[str, object], path: str, kind: str, role: str) -> Part | None:
        if kind == "thinking":
            return self._thought(block, path)
        if kind == "redacted_thinking":
            fields.refuse_extra(block, ("type", "data"), path)
            fields.as_text(fields.required(block, "data", path), f"{path}.data")
            return None
        self._breakpoints.block(block.get("cache_control"), f"{path}.cache_control")
        if kind == "tool_use":
            return _call(block, path)
        if kind == "tool_result":
            return self._result(block, path)
        return _shown(block, path, kind, cited=role == "assistant")

    def _thought(self, block: Mapping[str, object], path: str) -> Thought | None:
        """Return the thinking if we signed it: that of other models is no use to ours."""
        if block.get("cache_control") is not None:
            raise InvalidRequest(f"{path}.cache_control", "not allowed on thinking blocks")
        fields.refuse_extra(block, ("type", "thinking", "signature", "cache_control"), path)
        text = fields.as_text(fields.required(block, "thinking", path), f"{path}.thinking")
        signature = fields.as_text(fields.required(block, "signature", path), f"{path}.signature")
        return Thought(text=text) if text and self._verify(text, signature) else None

    def _result(self, block: Mapping[str, object], path: str) -> ToolResult:
        fields.refuse_extra(block, _RESULT_FIELDS, path)
        content, content_path = block.get("content"), f"{path}.content"
        if content is None:
            text = ""
        elif isinstance(content, str):
            text = fields.as_text(content, content_path)
        else:
            text = _BLOCK_SEPARATOR.join(self._result_texts(content, content_path))
        return ToolResult(
            tool_use_id=_identifier(block, "tool_use_id", path),
            text=text,
            is_error=block.get("is_error") is not None
            and fields.as_flag(block["is_error"], f"{path}.is_error"),
            path=path,
        )

    def _result_texts(self, content: object, path: str) -> Iterator[str]:
        for index, entry in enumerate(fields.as_blocks(content, path)):
            block_path = f"{path}.{index}"
            block = fields.as_object(entry, block_path)
            kind = _kind(block, block_path, _IN_RESULT)
            self._breakpoints.block(block.get("cache_control"), f"{block_path}.cache_control")
            # Tools do answer with empty texts; only in turns are they a mistake.
            yield _shown(block, block_path, kind, may_be_empty=True)


def _kind(block: Mapping[str, object], path: str, allowed: tuple[str, ...]) -> str:
    kind = fields.required(block, "type", path)
    if isinstance(kind, str) and kind in _UNSUPPORTED:
        raise InvalidRequest(path, f"content blocks of type '{kind}' are not supported")
    return fields.as_choice(kind, f"{path}.type", allowed)


def _shown(
    block: Mapping[str, object],
    path: str,
    kind: str,
    *,
    may_be_empty: bool = False,
    cited: bool = False,
) -> str:
    """Return the text of a block that is shown to the model as text.

    Args:
        cited: citations may stand here, as they do in earlier replies; they are not shown.
    """
    if kind == "search_result":
        return _search_result(block, path)
    if kind == "document":
        return _document(block, path)
    fields.refuse_extra(block, _TEXT_FIELDS, path)
    if not cited:
        fields.refuse_unbuilt(block, {"citations": fields.empty}, path)
    text = fields.as_text(fields.required(block, "text", path), f"{path}.text")
    if not text and not may_be_empty:
        raise InvalidRequest(path, "text content blocks must be non-empty")
    return text


def _search_result(block: Mapping[str, object], path: str) -> str:
    fields.refuse_extra(block, _SEARCH_FIELDS, path)
    _refuse_citing(block, path)
    head = [
        f"{label}: {fields.as_text(fields.required(block, key, path), f'{path}.{key}')}"
        for label, key in (("Title", "title"), ("Source", "source"))
    ]
    content = fields.required(block, "content", path)
    if isinstance(content, str):
        raise InvalidRequest(f"{path}.content", "Input should be a valid list")
    return _BLOCK_SEPARATOR.join([*head, *_texts(content, f"{path}.content")])


def _document(block: Mapping[str, object], path: str) -> str:
    fields.refuse_extra(block, _DOCUMENT_FIELDS, path)
    _refuse_citing(block, path)
    head = [
        f"{label}: {fields.as_text(block[key], f'{path}.{key}')}"
        for label, key in (("Title", "title"), ("Context", "context"))
        if block.get(key) is not None
    ]
    source_path = f"{path}.source"
    source = fields.as_object(fields.required(block, "source", path), source_path)
    kind = fields.required(source, "type", source_path)
    if kind == "text":
        fields.refuse_extra(source, ("type", "media_type", "data"), source_path)
        media = fields.required(source, "media_type", source_path)
        fields.as_choice(media, f"{source_path}.media_type", ("text/plain",))
        data = fields.as_text(fields.required(source, "data", source_path), f"{source_path}.data")
        return _BLOCK_SEPARATOR.join([*head, data])
    if kind == "content":
        fields.refuse_extra(source, ("type", "content"), source_path)
        content = fields.required(source, "content", source_path)
        return _BLOCK_SEPARATOR.join([*head, *_texts(content, f"{source_path}.content")])
    if isinstance(kind, str) and kind in ("base64", "url", "file"):
        raise InvalidRequest(source_path, f"document sources of type '{kind}' are not supported")
    raise InvalidRequest(f"{source_path}.type", "Input should be one of 'text', 'content'")


def _texts(content: object, path: str) -> list[str]:
    """Return the texts of a string or of text blocks inside another block."""
    if isinstance(content, str):
        return [fields.as_text(content, path)]
    texts = []
    for index, entry in enumerate(fields.as_blocks(content, path)):
        block_path = f"{path}.{index}"
        block = fields.as_object(entry, block_path)
        texts.append(_shown(block, block_path, _kind(block, block_path, ("text",))))
    return texts


def _refuse_citing(block: Mapping[str, object], path: str) -> None:
    """Refuse a wish for citations: this platform makes none."""
    if block.get("citations") is None:
        return
    citations = fields.as_object(block["citations"], f"{path}.citations")
    fields.refuse_extra(citations, ("enabled",), f"{path}.citations")
    if fields.optional_flag(citations, "enabled"):
        raise InvalidRequest(f"{path}.citations", "citations are not supported")


def _call(block: Mapping[str, object], path: str) -> ToolCall:
    fields.refuse_extra(block, _CALL_FIELDS, path)
    name = fields.as_text(
        fields.required(block, "name", path), f"{path}.name", fields.LABEL_CHARS_MAX
    )
    if not name:
        raise InvalidRequest(f"{path}.name", "String should have at least 1 character")
    arguments = fields.as_object(fields.required(block, "input", path), f"{path}.input")
    return ToolCall(
        id=_identifier(block, "id", path),
        name=name,
        arguments=json_text(arguments, f"{path}.input"),
    )


def _identifier(block: Mapping[str, object], key: str, path: str) -> str:
    value = fields.required(block, key, path)
    text = fields.as_text(value, f"{path}.{key}", fields.LABEL_CHARS_MAX)
    if not text:
        raise InvalidRequest(f"{path}.{key}", "String should have at least 1 character")
    return text
