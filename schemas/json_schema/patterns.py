"""Regular expressions as JSON schema has them (ECMA-262), for an engine that reads Rust's. Pure.

Where the two read the same text differently, it is rewritten to mean what ECMA-262 says; what the
engine does not know (look-around, back-references) it refuses by itself when it compiles.
"""

from schemas.dialects.canonical import InvalidRequest
from schemas.json_schema.values import as_text

__all__ = ["engine_pattern"]

_ANY_CHARACTER = r"[^\n\r\u2028\u2029]"
"""What a dot is; to Rust it is anything but a line feed."""
_IN_CLASS = "[&~"
"""Characters without meaning inside an ECMA-262 class that nest or combine classes in Rust."""


def engine_pattern(value: object, path: str) -> str:
    """Return a pattern as the engine has to read it. Raises InvalidRequest."""
    pattern, written, in_class = as_text(value, path), [], False
    place = 0
    while place < len(pattern):
        character = pattern[place]
        if character == "\\":
            written.append(pattern[place : place + 2])
            place += 2
            continue
        if in_class and pattern.startswith("--", place):
            raise InvalidRequest(path, "'--' inside a character class is not supported")
        if in_class and character in _IN_CLASS:
            written.append(f"\\{character}")
        elif not in_class and character == ".":
            written.append(_ANY_CHARACTER)
        else:
            written.append(character)
        in_class = character != "]" if in_class else character == "["
        place += 1
    return "".join(written)
