"""One JSON value as it is written: where it ends, or where it stops being JSON.

Owns what makes a tool call's arguments fit to be shown while they come: everything written out is
the beginning of a valid value that every JSON reader takes. So it is stricter than the grammar of
JSON in two things (nesting and the length of numbers are bounded, as SDKs' readers bound them), and
puts U+FFFD in the place of half a surrogate pair, which readers refuse. Time is linear.

Source: RFC 8259; jiter 0.x, which anthropic-python reads partial arguments with.
"""

import re
from enum import Enum, auto
from typing import Final

from schemas.limits import TOOL_ARGUMENTS_DEPTH_MAX, TOOL_ARGUMENTS_NUMBER_CHARS_MAX

__all__ = ["JsonScanner", "completed"]

_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]+')
_BLANKS: Final = " \t\r\n"
_SHORT_ESCAPES: Final = '"\\/bfnrt'
_HEX: Final = "0123456789abcdefABCDEF"
_WORDS: Final = {"t": "true", "f": "false", "n": "null"}
_REPLACEMENT: Final = "\\ufffd"
_DIGITS: Final = {"0", "1"}
# By state and class of character, the next state; the classes are 0, 1 (for 1-9), and the rest.
_NUMBER: Final = {
    "": {"-": "sign", "0": "zero", "1": "digits"},
    "sign": {"0": "zero", "1": "digits"},
    "zero": {".": "point", "e": "e"},
    "digits": {"0": "digits", "1": "digits", ".": "point", "e": "e"},
    "point": dict.fromkeys(_DIGITS, "fraction"),
    "fraction": {"0": "fraction", "1": "fraction", "e": "e"},
    "e": {"+": "e sign", "-": "e sign"} | dict.fromkeys(_DIGITS, "exponent"),
    "e sign": dict.fromkeys(_DIGITS, "exponent"),
    "exponent": dict.fromkeys(_DIGITS, "exponent"),
}
_NUMBER_ENDS: Final = {"zero", "digits", "fraction", "exponent"}
_NUMBER_CLASSES: Final = dict.fromkeys("23456789", "1") | {"E": "e"}


class _Expect(Enum):
    VALUE = auto()
    FIRST_ITEM = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    NEXT = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    NUMBER = auto()
    WORD = auto()


class JsonScanner:
    """Mutable state of one value. Push text until `done` or `broken`; `take` what it wrote."""

    __slots__ = (
        *("_escape", "_expect", "_high", "_in_key", "_nesting", "_number", "_size"),
        *("_word", "_written", "broken", "done"),
    )

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self._expect = _Expect.VALUE
        self._nesting: list[str] = []
        """The closing brackets to come, the outermost first."""
        self._written: list[str] = []
        self._in_key = False
        self._escape = ""
        """An escape that has begun."""
        self._high = ""
        """The escape of a high surrogate that waits for its low one."""
        self._number = ""
        self._size = 0
        self._word = ""
        """What is to come of `true`, `false` or `null`."""

    def push(self, text: str, start: int = 0) -> int:
        """Take text from `start` on; return the position after the last character of the value."""
        position, size = start, len(text)
        while position < size and not self.done and not self.broken:
            if self._expect is _Expect.STRING:
                plain = _PLAIN.match(text, position)
                if plain is not None:
                    self._replace_half_pair()
                    self._written.append(plain.group())
                    position = plain.end()
                    continue
            position += self._step(text[position])
        return position

    def take(self) -> str:
        """Return, once, what has been written since the last call."""
        written = "".join(self._written)
        self._written.clear()
        return written

    @property
    def unwritten(self) -> str:
        """What was taken and not written: the escape that the text broke off in."""
        return self._high + self._escape

    @property
    def in_number(self) -> bool:
        """True while the text so far ends in a number."""
        return self._expect is _Expect.NUMBER

    @property
    def closers(self) -> str | None:
        """What makes a whole value of the text so far; None inside a key, a string or a word."""
        whole = self._expect in (_Expect.FIRST_ITEM, _Expect.FIRST_KEY, _Expect.NEXT)
        if whole or (self._expect is _Expect.NUMBER and self._number in _NUMBER_ENDS):
            return "".join(reversed(self._nesting))
        return None

    def _step(self, character: str) -> bool:
        """Take one character; return False where it does not belong to the value."""
        match self._expect:
            case _Expect.STRING:
                return self._string(character)
            case _Expect.ESCAPE | _Expect.HEX:
                return self._escaped(character)
            case _Expect.NUMBER:
                return self._numeral(character)
            case _Expect.WORD:
                if not self._word.startswith(character):
                    return self._break()
                self._word = self._word[1:]
                self._written.append(character)
                if not self._word:
                    self._value_ended()
                return True
            case _:
                return self._between(character)

    def _between(self, character: str) -> bool:
        expect, nesting = self._expect, self._nesting
        if character in _BLANKS:
            self._written.append(character)
            return True
        if expect is _Expect.COLON and character == ":":
            self._expect = _Expect.VALUE
        elif expect is _Expect.NEXT and character == ",":
            self._expect = _Expect.KEY if nesting[-1] == "}" else _Expect.VALUE
        elif (
            expect in (_Expect.NEXT, _Expect.FIRST_ITEM, _Expect.FIRST_KEY)
            and character == nesting[-1]
        ):
            nesting.pop()
            self._value_ended()
        elif expect in (_Expect.KEY, _Expect.FIRST_KEY) and character == '"':
            self._expect, self._in_key = _Expect.STRING, True
        elif expect in (_Expect.VALUE, _Expect.FIRST_ITEM):
            return self._begin(character)
        else:
            return self._break()
        self._written.append(character)
        return True

    def _begin(self, character: str) -> bool:
        if character == '"':
            self._expect, self._in_key = _Expect.STRING, False
        elif character in "{[":
            if len(self._nesting) == TOOL_ARGUMENTS_DEPTH_MAX:
                return self._break()
            is_object = character == "{"
            self._nesting.append("}" if is_object else "]")
            self._expect = _Expect.FIRST_KEY if is_object else _Expect.FIRST_ITEM
        elif character in _WORDS:
            self._expect, self._word = _Expect.WORD, _WORDS[character][1:]
        else:
            self._expect, self._number, self._size = _Expect.NUMBER, "", 0
            return self._numeral(character)
        self._written.append(character)
        return True

    def _numeral(self, character: str) -> bool:
        kind = _NUMBER_CLASSES.get(character, character)
        following = _NUMBER[self._number].get(kind)
        if following is None:
            if self._number not in _NUMBER_ENDS:
                return self._break()
            self._value_ended()
            return False  # the character comes after the number
        if self._size == TOOL_ARGUMENTS_NUMBER_CHARS_MAX:
            return self._break()
        self._number = following
        self._size += 1
        self._written.append(character)
        return True

    def _string(self, character: str) -> bool:
        """Take what is not plain text."""
        if character == "\\":
            self._expect, self._escape = _Expect.ESCAPE, character
            return True
        if character != '"':
            return self._break()
        self._replace_half_pair()
        self._written.append(character)
        if self._in_key:
            self._expect = _Expect.COLON
        else:
            self._value_ended()
        return True

    def _escaped(self, character: str) -> bool:
        if self._expect is _Expect.ESCAPE:
            if character == "u":
                self._escape += character
                self._expect = _Expect.HEX
                return True
            if character not in _SHORT_ESCAPES:
                return self._break()
            self._replace_half_pair()
            self._written.append(self._escape + character)
        else:
            if character not in _HEX:
                return self._break()
            self._escape += character
            if len(self._escape) < 6:
                return True
            self._write_code_unit(int(self._escape[-4:], 16))
        self._expect, self._escape = _Expect.STRING, ""
        return True

    def _write_code_unit(self, unit: int) -> None:
        if 0xDC00 <= unit <= 0xDFFF:
            self._written.append(self._high + self._escape if self._high else _REPLACEMENT)
            self._high = ""
            return
        self._replace_half_pair()
        if 0xD800 <= unit <= 0xDBFF:
            self._high = self._escape
        else:
            self._written.append(self._escape)

    def _replace_half_pair(self) -> None:
        if self._high:
            self._written.append(_REPLACEMENT)
            self._high = ""

    def _value_ended(self) -> None:
        self._expect = _Expect.NEXT
        self.done = not self._nesting

    def _break(self) -> bool:
        self.broken = True
        return False


def completed(partial: str) -> str:
    """Return the text of the value that a reader makes of arguments that break off.

    Whatever is not whole is left out: a string, a word, a key without its value. Nothing at all is
    an empty object. A number that ends the text counts as it stands.
    """
    scanner, keep = JsonScanner(), 0
    for position, character in enumerate(partial):
        was_number = scanner.in_number
        scanner.push(character)
        if scanner.in_number:
            continue  # a number is whole where something follows it, or nothing
        if scanner.closers is not None:
            keep = position + 1
        elif was_number:
            keep = position
    if scanner.closers is not None:
        keep = len(partial)
    if not keep:
        return "{}"
    scanner = JsonScanner()
    scanner.push(partial[:keep])
    return partial[:keep] + (scanner.closers or "")
