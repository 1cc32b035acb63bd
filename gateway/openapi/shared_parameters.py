"""Parameters that operations of several modules take."""

from typing import Final

from gateway.openapi.forms import enum, text
from gateway.openapi.operation import Parameter
from schemas import limits

__all__ = ["KEY", "VERSION"]

VERSION: Final = Parameter(
    name="anthropic-version",
    place="header",
    schema=enum("2023-06-01", "2026-10-21"),
    description="Version of the API. 2026-10-21 knows no temperature, top_p and top_k.",
    required=True,
)
KEY: Final = Parameter(
    name="idempotency-key",
    place="header",
    schema=text(limits.IDEMPOTENCY_KEY_CHARS_MAX, r"^[!#-~][!-~]*$", 1),
    description="Repeats within 24 hours attach to the reply or get it again: one run, one bill.",
)
