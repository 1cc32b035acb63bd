"""Thinking and output format of Anthropic's Messages API.

Owns the rules of `thinking` and `output_config`. Whether the model can think is not known here.
"""

from collections.abc import Mapping
from typing import Final

from schemas.dialects import fields
from schemas.dialects.canonical import (
    CanonicalMessage,
    InvalidRequest,
    OutputFormat,
    Thinking,
    ToolChoice,
)
from schemas.dialects.json_texts import as_schema

_BUDGET_TOKENS_MIN = 1_024
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "enabled": ("type", "budget_tokens", "display"),
    "adaptive": ("type", "display"),
    "between_tools": ("type",),
    "disabled": ("type",),
}


def read_thinking(value: object, max_tokens: int | None) -> Thinking | None:
    """Return the wish to think; only `enabled` has a budget. Raises InvalidRequest."""
    if value is None:
        return None
    thinking = fields.as_object(value, "thinking")
    kind = fields.as_choice(fields.required(thinking, "type", "thinking"), "thinking.type", _FIELDS)
    fields.refuse_extra(thinking, _FIELDS[kind], "thinking")
    display = thinking.get("display")
    if display is not None:
        fields.as_choice(display, "thinking.display", ("summarized", "omitted"))
    budget_tokens = None
    if kind == "enabled":
        budget_tokens = fields.as_integer(
            fields.required(thinking, "budget_tokens", "thinking"),
            "thinking.budget_tokens",
            _BUDGET_TOKENS_MIN,
        )
        if max_tokens is not None and budget_tokens >= max_tokens:
            raise InvalidRequest("max_tokens", "must be greater than thinking.budget_tokens")
    return Thinking(
        enabled=kind != "disabled", budget_tokens=budget_tokens, shown=display != "omitted"
    )


def check_thinking(
    thinking: Thinking | None, choice: ToolChoice, messages: tuple[CanonicalMessage, ...]
) -> None:
    """Refuse what leaves a reply that was told to think no place to. Raises InvalidRequest."""
    if thinking is None or thinking.budget_tokens is None:
        return
    if choice.mode in ("required", "named"):
        raise InvalidRequest("thinking", "may not be enabled when tool_choice forces tool use")
    if messages[-1].continued:
        raise InvalidRequest(
            "thinking", "may not be enabled when the last message is the assistant's (a prefill)"
        )


def read_output(request: Mapping[str, object]) -> OutputFormat | None:
    """Return the format of `output_config`, or of the older `output_format`.

    Raises: InvalidRequest.
    """
    output = None
    if request.get("output_config") is not None:
        config = fields.as_object(request["output_config"], "output_config")
        fields.refuse_extra(config, ("effort", "format", "task_budget"), "output_config")
        fields.refuse_unbuilt(config, {"task_budget": fields.never}, "output_config")
        if config.get("effort") is not None:
            fields.as_choice(config["effort"], "output_config.effort", _EFFORTS)
        output = _format(config.get("format"), "output_config.format")
    older = _format(request.get("output_format"), "output_format")
    if output is not None and older is not None:
        raise InvalidRequest("output_format", "give either output_format or output_config.format")
    return output or older


def _format(value: object, path: str) -> OutputFormat | None:
    if value is None:
        return None
    form = fields.as_object(value, path)
    fields.as_choice(fields.required(form, "type", path), f"{path}.type", ("json_schema",))
    fields.refuse_extra(form, ("type", "schema"), path)
    schema_path = f"{path}.schema"
    schema = as_schema(fields.required(form, "schema", path), schema_path)
    return OutputFormat(kind="json_schema", schema=schema, path=schema_path)
