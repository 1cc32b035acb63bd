"""How OpenAI's APIs ask a model to think: by an effort; vLLM's clients by a template's setting."""

from typing import Final

from schemas.dialects import fields
from schemas.dialects.canonical import Thinking
from schemas.dialects.openai_errors import refuse_unknown

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

_SETTINGS = "chat_template_kwargs"


def read_effort(value: object, path: str) -> Thinking | None:
    """Return the wish to think that an effort says; how much of it is the model's matter.

    Raises: InvalidRequest.
    """
    if value is None:
        return None
    return Thinking(enabled=fields.as_choice(value, path, EFFORTS) != "none")


def read_template_settings(value: object) -> Thinking | None:
    """Return the wish in `chat_template_kwargs`; no other setting is known. Raises
    InvalidRequest."""
    if value is None:
        return None
    settings = fields.as_object(value, _SETTINGS)
    refuse_unknown(settings, ("enable_thinking",), _SETTINGS)
    if settings.get("enable_thinking") is None:
        return None
    path = f"{_SETTINGS}.enable_thinking"
    return Thinking(enabled=fields.as_flag(settings["enable_thinking"], path))
