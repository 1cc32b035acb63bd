"""Tools of Anthropic's Messages API: which the model is offered, and which it must call.

Owns the rules of `tools` and `tool_choice`. Tools that clients run and Anthropic types (bash, text
editor, memory) stand in `anthropic_client_tools.py`; tools that servers run are refused by type.
"""

import re
from collections.abc import Mapping

from msgspec.structs import replace

from schemas.dialects import fields
from schemas.dialects.anthropic_caching import CacheBreakpoints
from schemas.dialects.anthropic_client_tools import CLIENT_TOOLS
from schemas.dialects.canonical import InvalidRequest, Tool, ToolChoice
from schemas.dialects.json_texts import as_arguments_schema
from schemas.limits import HTTP_TOOLS_MAX

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SHARED_FIELDS = (
    *("type", "name", "cache_control", "strict", "defer_loading", "allowed_callers"),
    *("input_examples", "eager_input_streaming"),
)
_CUSTOM_FIELDS = (*_SHARED_FIELDS, "description", "input_schema")
_TYPED_FIELDS = (*_SHARED_FIELDS, "max_characters")
_CHOICE_FIELDS = {
    "auto": ("type", "disable_parallel_tool_use"),
    "any": ("type", "disable_parallel_tool_use"),
    "tool": ("type", "name", "disable_parallel_tool_use"),
    "none": ("type",),
}


def read_tools(value: object, breakpoints: CacheBreakpoints) -> tuple[Tool, ...]:
    """Return the tools that a request offers. Raises InvalidRequest."""
    if value is None:
        return ()
    tools, names = [], set[str]()
    for index, entry in enumerate(fields.as_list(value, "tools", HTTP_TOOLS_MAX)):
        path = f"tools.{index}"
        tool = _tool(fields.as_object(entry, path), path, breakpoints)
        if tool.name in names:
            raise InvalidRequest("tools", f"Tool names must be unique: '{tool.name}'")
        names.add(tool.name)
        tools.append(tool)
    return tuple(tools)


def read_tool_choice(value: object, tools: tuple[Tool, ...]) -> ToolChoice:
    """Return which tools may or must be called. Raises InvalidRequest."""
    if value is None:
        return ToolChoice()
    choice = fields.as_object(value, "tool_choice")
    kind = fields.as_choice(
        fields.required(choice, "type", "tool_choice"), "tool_choice.type", _CHOICE_FIELDS
    )
    fields.refuse_extra(choice, _CHOICE_FIELDS[kind], "tool_choice")
    single = choice.get("disable_parallel_tool_use")
    parallel = single is None or not fields.as_flag(single, "tool_choice.disable_parallel_tool_use")
    if kind == "none":
        return ToolChoice(mode="none")
    if kind == "auto":
        return ToolChoice(parallel=parallel)
    if not tools:
        raise InvalidRequest("tool_choice", "may only be specified while providing tools")
    if kind == "any":
        return ToolChoice(mode="required", parallel=parallel)
    name = fields.as_text(fields.required(choice, "name", "tool_choice"), "tool_choice.name")
    if all(tool.name != name for tool in tools):
        raise InvalidRequest("tool_choice.name", f"no tool '{name}' in tools")
    return ToolChoice(mode="named", names=(name,), parallel=parallel)


def _tool(tool: Mapping[str, object], path: str, breakpoints: CacheBreakpoints) -> Tool:
    kind = tool.get("type")
    known = CLIENT_TOOLS.get(kind) if isinstance(kind, str) else None
    if known is None and kind not in (None, "custom"):
        if not isinstance(kind, str):
            raise InvalidRequest(f"{path}.type", "Input should be a valid string")
        raise InvalidRequest(
            f"{path}.type",
            f"tools of type '{kind}' are not supported: only custom tools and "
            f"{', '.join(CLIENT_TOOLS)}",
        )
    fields.refuse_extra(tool, _CUSTOM_FIELDS if known is None else _TYPED_FIELDS, path)
    breakpoints.block(tool.get("cache_control"), f"{path}.cache_control")
    strict = tool.get("strict") is not None and fields.as_flag(tool["strict"], f"{path}.strict")
    if known is not None:
        name = fields.required(tool, "name", path)
        fields.as_choice(name, f"{path}.name", (known.name,))
        return replace(known, strict=strict)
    name = fields.as_text(fields.required(tool, "name", path), f"{path}.name")
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{path}.name", f"String should match pattern '^{_NAME.pattern}$'")
    description = tool.get("description")
    schema_path = f"{path}.input_schema"
    schema = fields.as_object(fields.required(tool, "input_schema", path), schema_path)
    fields.required(schema, "type", schema_path)
    return Tool(
        name=name,
        description=None
        if description is None
        else fields.as_text(description, f"{path}.description"),
        schema=as_arguments_schema(schema, schema_path),
        strict=strict,
    )
