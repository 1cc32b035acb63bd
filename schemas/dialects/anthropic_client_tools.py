"""Anthropic's typed tools that the client runs: bash, text editor, memory.

Owns their schemas, which requests leave out because hosted models know them; other models are told.

Source: https://docs.anthropic.com/en/docs/agents-and-tools/tool-use (bash, text editor, memory).
"""

from collections.abc import Mapping
from typing import Final

from schemas.dialects.canonical import Tool

_TEXT: Final = {"type": "string"}
_LINE: Final = {"type": "integer", "minimum": 0}
_LINES: Final = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}


def _object(required: list[str], properties: dict[str, object]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _editor(name: str, commands: list[str], *, undoes: bool = False) -> Tool:
    return Tool(
        name=name,
        description="View, create and edit text files. `view` shows a file, or the lines of "
        "`view_range`, or lists a folder; `create` writes `file_text`; `str_replace` replaces the "
        "one occurrence of `old_str` by `new_str`; `insert` puts text after line `insert_line`."
        + (" `undo_edit` takes the last edit back." if undoes else ""),
        schema=_object(
            ["command", "path"],
            {
                "command": {"type": "string", "enum": commands},
                "path": _TEXT,
                "file_text": _TEXT,
                "old_str": _TEXT,
                "new_str": _TEXT,
                "insert_line": _LINE,
                **({} if undoes else {"insert_text": _TEXT}),
                "view_range": _LINES,
            },
        ),
    )


_BASH: Final = Tool(
    name="bash",
    description="Run a command in a persistent bash session. `restart` starts a new session.",
    schema=_object([], {"command": _TEXT, "restart": {"type": "boolean"}}),
)
_OLD_EDITOR: Final = _editor(
    "str_replace_editor", ["view", "create", "str_replace", "insert", "undo_edit"], undoes=True
)
_EDITOR: Final = _editor("str_replace_based_edit_tool", ["view", "create", "str_replace", "insert"])
_MEMORY: Final = Tool(
    name="memory",
    description="Keep notes in files below /memories across conversations. `view` shows a file or "
    "folder; `create` writes `file_text`; `str_replace` replaces `old_str` by `new_str`; `insert` "
    "puts `insert_text` after line `insert_line`; `delete` removes `path`; `rename` moves "
    "`old_path` to `new_path`.",
    schema=_object(
        ["command"],
        {
            "command": {
                "type": "string",
                "enum": ["view", "create", "str_replace", "insert", "delete", "rename"],
            },
            "path": _TEXT,
            "file_text": _TEXT,
            "old_str": _TEXT,
            "new_str": _TEXT,
            "insert_line": _LINE,
            "insert_text": _TEXT,
            "old_path": _TEXT,
            "new_path": _TEXT,
            "view_range": _LINES,
        },
    ),
)

CLIENT_TOOLS: Final[Mapping[str, Tool]] = {
    "bash_20250124": _BASH,
    "text_editor_20250124": _OLD_EDITOR,
    "text_editor_20250429": _EDITOR,
    "text_editor_20250728": _EDITOR,
    "memory_20250818": _MEMORY,
}
"""By the type that a request names."""
