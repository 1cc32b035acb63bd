"""A prompt's text as token ids, without tokenizing again what has been tokenized before.

A control token ends one stretch of text and begins the next, and in most vocabularies no token
reaches from a word into the next one: such pieces are tokenized alone and remembered, so that a
prompt costs the library its rare words only. Owns the cutting and the rules that tell where it
changes no token; texts of other tokenizers go to the library as they are. The library's calls are
`infra/tokenizer.py`'s, who calls this.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

__all__ = ["WHOLE", "AddedToken", "Cuts", "PromptEncoder", "cuts_of"]

Encode = Callable[[Sequence[str]], list[list[int]]]
"""Tokenizes each of these texts, adding no token."""

_KEPT_MAX = 16_384
_KEPT_CHARS_MAX = 128
"""Longer pieces hardly ever come again. At most 5 MiB are kept, all in all."""
_CUT_CHARS_MAX = 16_384
"""Longer texts go to the library in one call, which lets other threads run meanwhile."""
_WORD = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")
_ALONE = {"ByteLevel", "Digits", "Split", "Punctuation", "Whitespace", "WhitespaceSplit"}
"""Pre-tokenizers that do not ask what stands before a stretch (`Metaspace` does)."""
_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD"}
_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WORD_PATTERNS = {_CL100K % "{1,3}", _CL100K % ""}
"""Of Llama 3 and Qwen 2: as in GPT-2's, a word takes one space before it along, no other text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """What matters here of a token that is found before all others."""

    token_id: int
    content: str
    is_plain: bool
    """True where it takes no space or word around it along and is found in the text as written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """Where a text may be cut without changing a token."""

    control: Mapping[str, int]
    """Ids of the tokens to cut at, by spelling."""
    at_words: bool
    """True where a space between two letters of ASCII begins a new piece."""


WHOLE = Cuts(control={}, at_words=False)
"""Nowhere."""


class PromptEncoder:
    """Encodes rendered prompts; safe to share between threads."""

    def __init__(self, encode: Encode, cuts: Cuts) -> None:
        self._encode = encode
        self._control = cuts.control
        self._at_words = cuts.at_words
        # Longest first, as the library matches them.
        spellings = sorted(cuts.control, key=len, reverse=True)
        self._splitter = re.compile(f"({'|'.join(map(re.escape, spellings))})")
        self._kept: dict[str, list[int]] = {}

    def encode(self, texts: Sequence[str]) -> list[int]:
        """Return the ids of texts that are tokenized one by one."""
        if not self._control or sum(map(len, texts)) > _CUT_CHARS_MAX:
            return list(chain.from_iterable(self._encode(texts)))
        token_ids: list[int] = []
        for text in texts:
            for at, stretch in enumerate(self._splitter.split(text)):
                if at % 2:
                    token_ids.append(self._control[stretch])
                elif stretch:
                    token_ids += self._stretch(stretch)
        return token_ids

    def _stretch(self, text: str) -> list[int]:
        """Return the ids of a text without control tokens."""
        token_ids = self._kept.get(text)
        if token_ids is None:
            token_ids = self._by_words(text) if self._at_words else self._encode([text])[0]
            self._keep(text, token_ids)
        return token_ids

    def _by_words(self, text: str) -> list[int]:
        pieces = _WORD.split(text)
        try:
            return [token_id for piece in pieces for token_id in self._kept[piece]]
        except KeyError:
            pass
        found = {piece: self._kept.get(piece) for piece in pieces}
        unknown = [piece for piece, token_ids in found.items() if token_ids is None]
        for piece, token_ids in zip(unknown, self._encode(unknown), strict=True):
            found[piece] = token_ids
            self._keep(piece, token_ids)
        return [token_id for piece in pieces for token_id in found[piece] or ()]

    def _keep(self, piece: str, token_ids: list[int]) -> None:
        if len(piece) <= _KEPT_CHARS_MAX:
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()  # what is common is soon there again
            self._kept[piece] = token_ids


def cuts_of(tokenizer_json: str, added: Iterable[AddedToken]) -> Cuts:
    """Return where texts for a tokenizer may be cut.

    Args: `tokenizer_json` is the tokenizer as the library writes it.
    """
    stated = json.loads(tokenizer_json)
    normalizers = {part["type"] for part in _parts(stated.get("normalizer"), "normalizers")}
    pre_tokenizers = list(_parts(stated.get("pre_tokenizer"), "pretokenizers"))
    tokens = list(added)
    if normalizers - _NORMALIZERS or {part["type"] for part in pre_tokenizers} - _ALONE:
        return WHOLE
    if not all(token.is_plain and token.content for token in tokens):
        return WHOLE
    return Cuts(
        control={token.content: token.token_id for token in tokens},
        at_words=any(map(_cuts_words, pre_tokenizers))
        and not any(part.get("add_prefix_space") for part in pre_tokenizers),
    )


def _parts(part: Any, members: str) -> Iterator[dict[str, Any]]:
    """Yield a part of the tokenizer as it is stated, those of a sequence one by one."""
    if part is None:
        return
    if part["type"] == "Sequence":
        for member in part[members]:
            yield from _parts(member, members)
    else:
        yield part


def _cuts_words(part: Mapping[str, Any]) -> bool:
    """Tell whether a pre-tokenizer begins a new piece at each space between two letters."""
    if part["type"] == "ByteLevel":
        return part.get("use_regex") is True
    pattern = part.get("pattern") or {}
    isolated = part.get("behavior") == "Isolated" and not part.get("invert")
    return part["type"] == "Split" and isolated and pattern.get("Regex") in _WORD_PATTERNS
