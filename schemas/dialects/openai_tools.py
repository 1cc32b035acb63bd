"""Tools of OpenAI's APIs: which the model is offered, and which it may or must call.

Owns the rules of `tools` and `tool_choice` in both spellings: nested in `function` (Chat
Completions) and flat (Responses).
"""

import re
from collections.abc import Mapping

from schemas.dialects import fields
from schemas.dialects.canonical import InvalidRequest, Tool, ToolChoice
from schemas.dialects.json_texts import as_arguments_schema
from schemas.dialects.openai_errors import refuse_unknown
from schemas.limits import HTTP_TOOLS_MAX

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FUNCTION_FIELDS = ("name", "description", "parameters", "strict")
_NESTED_FIELDS = ("type", "function", "cache_control")
_FLAT_FIELDS = (
    *("type", *_FUNCTION_FIELDS),
    *("allowed_callers", "defer_loading", "output_schema", "async"),
)


def read_tools(value: object, *, flat: bool) -> tuple[Tool, ...]:
    """Return the tools that a request offers. Raises InvalidRequest."""
    if value is None:
        return ()
    tools, names = [], set[str]()
    for index, entry in enumerate(fields.as_list(value, "tools", HTTP_TOOLS_MAX)):
        path = f"tools.{index}"
        tool = _tool(fields.as_object(entry, path), path, flat=flat)
        if tool.name in names:
            raise InvalidRequest(path, f"the name '{tool.name}' is given twice")
        names.add(tool.name)
        tools.append(tool)
    return tuple(tools)


def read_tool_choice(
    request: Mapping[str, object], tools: tuple[Tool, ...], *, flat: bool
) -> ToolChoice:
    """Return which tools may or must be called. Raises InvalidRequest."""
    given = request.get("parallel_tool_calls")
    parallel = given is None or fields.as_flag(given, "parallel_tool_calls")
    value, path = request.get("tool_choice"), "tool_choice"
    if value is None or value == "auto":
        return ToolChoice(parallel=parallel)
    if value == "none":
        return ToolChoice(mode="none")
    if value == "required":
        _require_tools(tools)
        return ToolChoice(mode="required", parallel=parallel)
    if isinstance(value, str):
        fields.as_choice(value, path, ("none", "auto", "required"))
    choice = fields.as_object(value, path)
    kind = fields.required(choice, "type", path)
    fields.as_choice(kind, f"{path}.type", ("function", "allowed_tools"))
    _require_tools(tools)
    if kind == "function":
        refuse_unknown(choice, ("type", "name") if flat else ("type", "function"), path)
        names = (_chosen(choice, path, tools, flat=flat),)
        return ToolChoice(mode="named", names=names, parallel=parallel)
    return _allowed(choice, path, tools, flat=flat, parallel=parallel)


def _tool(tool: Mapping[str, object], path: str, *, flat: bool) -> Tool:
    kind = fields.required(tool, "type", path)
    if isinstance(kind, str) and kind != "function":
        raise InvalidRequest(
            f"{path}.type", f"tools of type '{kind}' are not supported: only 'function'"
        )
    fields.as_choice(kind, f"{path}.type", ("function",))
    function, whole = tool, path
    if not flat:
        refuse_unknown(tool, _NESTED_FIELDS, path)
        whole = f"{path}.function"
        function = fields.as_object(fields.required(tool, "function", path), whole)
    return read_function(function, whole, known=_FLAT_FIELDS if flat else _FUNCTION_FIELDS)


def read_function(
    function: Mapping[str, object], whole: str, *, known: tuple[str, ...] = _FUNCTION_FIELDS
) -> Tool:
    """Return a function's name, description and schema. Raises InvalidRequest."""
    refuse_unknown(function, known, whole)
    name = fields.as_text(fields.required(function, "name", whole), f"{whole}.name")
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{whole}.name", f"String should match pattern '^{_NAME.pattern}$'")
    description, strict = function.get("description"), function.get("strict")
    return Tool(
        name=name,
        description=None
        if description is None
        else fields.as_text(description, f"{whole}.description"),
        schema=as_arguments_schema(function.get("parameters"), f"{whole}.parameters"),
        strict=strict is not None and fields.as_flag(strict, f"{whole}.strict"),
    )


def _allowed(
    choice: Mapping[str, object], path: str, tools: tuple[Tool, ...], *, flat: bool, parallel: bool
) -> ToolChoice:
    allowed = choice
    if flat:
        refuse_unknown(choice, ("type", "mode", "tools"), path)
    else:
        refuse_unknown(choice, ("type", "allowed_tools"), path)
        path = f"{path}.allowed_tools"
        allowed = fields.as_object(fields.required(choice, "allowed_tools", "tool_choice"), path)
        refuse_unknown(allowed, ("mode", "tools"), path)
    mode = fields.as_choice(
        fields.required(allowed, "mode", path), f"{path}.mode", ("auto", "required")
    )
    entries = fields.as_list(
        fields.required(allowed, "tools", path), f"{path}.tools", HTTP_TOOLS_MAX
    )
    if not entries:
        raise InvalidRequest(f"{path}.tools", "List should have at least 1 item")
    names = []
    for index, entry in enumerate(entries):
        entry_path = f"{path}.tools.{index}"
        named = fields.as_object(entry, entry_path)
        kind = fields.required(named, "type", entry_path)
        fields.as_choice(kind, f"{entry_path}.type", ("function",))
        names.append(_chosen(named, entry_path, tools, flat=flat))
    return ToolChoice(
        mode="required" if mode == "required" else "auto",
        names=tuple(dict.fromkeys(names)),
        parallel=parallel,
    )


def _chosen(choice: Mapping[str, object], path: str, tools: tuple[Tool, ...], *, flat: bool) -> str:
    if not flat:
        choice = fields.as_object(fields.required(choice, "function", path), f"{path}.function")
        path = f"{path}.function"
    name = fields.as_text(fields.required(choice, "name", path), f"{path}.name")
    if all(tool.name != name for tool in tools):
        raise InvalidRequest(f"{path}.name", f"no tool '{name}' in tools")
    return name


def _require_tools(tools: tuple[Tool, ...]) -> None:
    if not tools:
        raise InvalidRequest("tool_choice", "is only allowed when tools are specified")
