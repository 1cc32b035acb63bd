"""`functions` and `function_call` of Chat Completions, the form that `tools` replaced.

Owns how a request in that form is read into tools. A reply to it shows its call in the same form:
`FUNCTIONS_VERSION` in its header says so. Messages of that form are read by `openai_messages.py`.

Source: https://platform.openai.com/docs/api-reference/chat/create, members marked deprecated.
"""

from collections.abc import Mapping
from typing import Final

from schemas.dialects import fields
from schemas.dialects.canonical import InvalidRequest, Tool, ToolChoice
from schemas.dialects.openai_errors import refuse_unknown
from schemas.dialects.openai_tools import read_function
from schemas.limits import HTTP_TOOLS_MAX

__all__ = ["FUNCTIONS_VERSION", "asks_in_functions", "read_function_choice", "read_functions"]

FUNCTIONS_VERSION: Final = "v1-functions"
"""The dialect's version where calls are shown as `function_call`."""
_SUCCESSORS = ("tools", "tool_choice", "parallel_tool_calls")
_ASK_NOTHING = (None, "none", "auto")


def asks_in_functions(request: Mapping[str, object]) -> bool:
    """Tell whether a request speaks of functions. Raises InvalidRequest where of tools as well."""
    if request.get("functions") in (None, []) and request.get("function_call") in _ASK_NOTHING:
        return False
    for member in _SUCCESSORS:
        if request.get(member) is not None:
            raise InvalidRequest(member, "cannot be combined with functions and function_call")
    return True


def read_functions(value: object) -> tuple[Tool, ...]:
    """Return the functions that a request offers. Raises InvalidRequest."""
    if value is None:
        return ()
    tools, names = [], set[str]()
    for index, entry in enumerate(fields.as_list(value, "functions", HTTP_TOOLS_MAX)):
        path = f"functions.{index}"
        tool = read_function(fields.as_object(entry, path), path)
        if tool.name in names:
            raise InvalidRequest(path, f"the name '{tool.name}' is given twice")
        names.add(tool.name)
        tools.append(tool)
    return tuple(tools)


def read_function_choice(value: object, functions: tuple[Tool, ...]) -> ToolChoice:
    """Return which function may or must be called, one at most. Raises InvalidRequest."""
    path = "function_call"
    if value is None or value == "auto":
        return ToolChoice(parallel=False)
    if isinstance(value, str):
        fields.as_choice(value, path, ("none", "auto"))
        return ToolChoice(mode="none")
    choice = fields.as_object(value, path)
    refuse_unknown(choice, ("name",), path)
    name = fields.as_text(fields.required(choice, "name", path), f"{path}.name")
    if all(function.name != name for function in functions):
        raise InvalidRequest(f"{path}.name", f"no function '{name}' in functions")
    return ToolChoice(mode="named", names=(name,), parallel=False)
