"""One route of the HTTP API as data: parameters, bodies, statuses."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateway.openapi.forms import Schema, one_of, ref

__all__ = ["Family", "Operation", "Parameter", "error_schema"]

Family = Literal["anthropic", "openai", "either"]
"""Whose shape errors have; `either` = by the header anthropic-version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a path, query or header."""

    name: str
    place: Literal["path", "query", "header"]
    schema: Schema
    description: str
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method on one path."""

    method: str
    path: str
    """As OpenAPI writes it."""
    name: str
    summary: str
    family: Family
    errors: tuple[int, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    body: str | None = None
    """Schema of the body."""
    body_media: str = "application/json"
    reply: str | None = None
    """Schema of the JSON reply; None = `media` without one."""
    media: str = "application/json"
    streams: bool = False
    """Whether the reply may come as server-sent events."""
    needs_key: bool = True
    tells_limits: bool = False
    """Whether headers tell what is left of the org's limits."""
    extra: Mapping[int, str] = field(default_factory=dict)
    """Statuses beside 200 and the errors, with what they mean."""


def error_schema(family: Family) -> Schema:
    """Return the schema of an operation's errors."""
    shapes = {"anthropic": ref("AnthropicError"), "openai": ref("OpenAiError")}
    return shapes.get(family) or one_of(*shapes.values())
