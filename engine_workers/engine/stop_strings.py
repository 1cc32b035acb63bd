"""Finds stop strings in the text of an engine that makes token ids only.

Owns matching over token seams, by vLLM's rules, so that replies of the scripted engine end where
vLLM's would. Does not cut text: readers of the log do. Called by `scripted_engine`.
"""

from schemas.assembler import TokenDecoder


class StopStrings:
    """Finds stop strings in decoded text as vLLM does: past min_tokens, also over token seams."""

    __slots__ = ("_decoder", "_keep", "_made", "_min_tokens", "_stop", "_tail")

    def __init__(self, stop: tuple[str, ...], decoder: TokenDecoder, min_tokens: int) -> None:
        self._stop = stop
        self._decoder = decoder
        self._min_tokens = min_tokens
        self._keep = max(len(text) for text in stop) - 1
        self._tail = ""
        self._made = 0

    def match(self, token_id: int) -> str | None:
        """Take one token; return the stop string that it completes, the earliest in the text."""
        self._made += 1
        text = self._decoder.step(token_id)
        seen, self._tail = (
            self._tail + text,
            (self._tail + text)[-self._keep :] if self._keep else "",
        )
        if not text or self._made <= self._min_tokens:
            return None
        found = [
            (end + len(stop), index)
            for index, stop in enumerate(self._stop)
            if (end := seen.find(stop, max(0, len(seen) - len(text) - len(stop) + 1))) >= 0
        ]
        return self._stop[min(found)[1]] if found else None
