"""Which string formats are enforced, and how.

Every format is enforced at least as tightly as the usual validators check it: where the engine's
own rule is looser (29 February of any year, leap seconds) a pattern stands in its place. Formats of
international names are enforced in their ASCII forms. Names that JSON schema does not define say
nothing about a string's text (`int64`, `password`) and pass.

Source: JSON Schema validation 2020-12, section 7.3.
"""

from collections.abc import Mapping
from typing import Final

_YEAR = "[1-9][0-9]{3}"
_DAY = (
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
    "02-(0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"{_YEAR}-{_DAY}"
_HOUR = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR}:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[+-]{_HOUR})"
_POINTER = "(/([^/~]|~[01])*)*"

ENGINE: Final[Mapping[str, str]] = {
    "duration": "duration",
    "email": "email",
    "hostname": "hostname",
    "ipv4": "ipv4",
    "ipv6": "ipv6",
    "uri": "uri",
    "uuid": "uuid",
    "idn-email": "email",
    "idn-hostname": "hostname",
    "iri": "uri",
    "iri-reference": "uri",
    "uri-reference": "uri",
    "uri-template": "uri",
}
"""The engine's own format by the client's."""

PATTERNS: Final[Mapping[str, str]] = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": f"^(0|[1-9][0-9]*)(#|{_POINTER})$",
}
"""The pattern that enforces a format."""

REFUSED: Final = frozenset({"regex"})
"""Formats that nothing here enforces."""
