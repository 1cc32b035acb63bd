"""Text of one choice, held back while it may be (part of) a stop string.

Owns what a client may see of a reply that ends at a stop string: never a character of that string.
The engine decides where a reply stops; this only repeats its decision: a match counts where the
reply's last text completes it, and a match that further text follows was let pass (`min_tokens`).

Source: Knuth, Morris, Pratt 1977; vLLM's `check_stop_strings` for which match counts.
"""

from collections.abc import Sequence
from functools import lru_cache


class HeldText:
    """Mutable state of one choice: the text held back, and how far each stop string is matched."""

    __slots__ = ("_matchers", "_matches", "_pending")

    def __init__(self, stop: Sequence[str]) -> None:
        self._matchers = [_Matcher(text) for text in stop]
        self._pending = ""
        self._matches: dict[str, int] = {}
        """Where in `_pending` the matches start that the newest text completed."""

    @property
    def is_free(self) -> bool:
        """Tell whether nothing is ever held back."""
        return not self._matchers

    def push(self, text: str) -> str:
        """Take what one token released; return what may be shown now."""
        if not self._matchers or not text:
            return text
        pending = self._pending + text
        before = len(self._pending)
        hold_from = len(pending)
        self._matches = {}
        for matcher in self._matchers:
            end = matcher.push(text)
            if end is not None:
                start = before + end - len(matcher.stop)
                self._matches[matcher.stop] = start
                hold_from = min(hold_from, start)
            hold_from = min(hold_from, len(pending) - matcher.matched)
        self._pending = pending[hold_from:]
        self._matches = {stop: start - hold_from for stop, start in self._matches.items()}
        return pending[:hold_from]

    def end(self, stop_sequence: str | None) -> str:
        """Return the rest of the text, cut where the stop string starts that ended the choice."""
        rest, self._pending = self._pending, ""
        if stop_sequence is None:
            return rest
        return rest[: self._matches.get(stop_sequence, len(rest))]


class _Matcher:
    """Longest prefix of one stop string that ends the text so far; linear in the text."""

    __slots__ = ("_fallback", "matched", "stop")

    def __init__(self, stop: str) -> None:
        assert stop, "an empty stop string matches everywhere"
        self.stop = stop
        self.matched = 0
        """Length of the longest proper prefix of `stop` that the text so far ends with."""
        self._fallback = _fallbacks(stop)

    def push(self, text: str) -> int | None:
        """Take more text; return where in it the first match ends, counted in characters."""
        stop, fallback, matched = self.stop, self._fallback, self.matched
        if matched == 0 and stop[0] not in text:
            return None
        first_end = None
        for index, character in enumerate(text):
            while matched and stop[matched] != character:
                matched = fallback[matched - 1]
            if stop[matched] == character:
                matched += 1
            if matched == len(stop):
                if first_end is None:
                    first_end = index + 1
                matched = fallback[matched - 1]
        self.matched = matched
        return first_end


@lru_cache(maxsize=1_024)
def _fallbacks(stop: str) -> Sequence[int]:
    """Return, by length - 1, the longest proper prefix that also ends the prefix of that length."""
    fallback, matched = [0], 0
    for character in stop[1:]:
        while matched and stop[matched] != character:
            matched = fallback[matched - 1]
        if stop[matched] == character:
            matched += 1
        fallback.append(matched)
    return fallback
