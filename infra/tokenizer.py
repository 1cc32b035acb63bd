"""Chat template and tokenizer of one model: messages to prompt tokens, reply tokens to text.

What a prompt's text is, and that no client's text in it becomes a control token, is
`prompt_text.py`'s matter.

Called by the gateway. `encode` of a long prompt is meant for a thread; the rest is quick.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import tokenizers
from tokenizers.decoders import DecodeStream

from infra.chat_template import ChatTemplate
from infra.errors import StartupError
from infra.ports import Clock
from infra.prompt_text import Prompt, PromptRenderer
from infra.prompt_tokens import AddedToken, PromptEncoder, cuts_of
from infra.token_bytes import spelling_reader
from schemas.assembler import TokenDecoder
from schemas.dialects.canonical import CanonicalMessage, Tool
from schemas.limits import PROMPT_BYTES_PER_TOKEN_MAX

_SHOWN_TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
"""Tags that the assembler reads in a reply's text, also where they are control tokens."""
_REPLACEMENT = "\ufffd"
"""What a decoder writes for bytes that are no character."""
_INVALID_PREFIX = "Invalid prefix encountered"


class Tokenizer:
    """One model's template and tokenizer; immutable, shared between threads."""

    def __init__(
        self, *, tokenizer: tokenizers.Tokenizer, template: ChatTemplate, eos_ids: frozenset[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self.eos_ids = eos_ids
        self.template_hash = hashlib.sha256(template.source.encode()).hexdigest()
        by_id = tokenizer.get_added_tokens_decoder()
        added = by_id.values()
        self._encoder = PromptEncoder(
            partial(self._encoded, add_special_tokens=False),
            cuts_of(tokenizer.to_str(), map(_added, by_id.items())),
        )
        self._added_texts = {token.content for token in added}
        decoder = tokenizer.decoder.__getstate__().decode() if tokenizer.decoder else ""
        self._spelled = spelling_reader(decoder)
        self._is_byte_level = json.loads(decoder or "{}").get("type") == "ByteLevel"
        self._control_tokens = tuple(token.content for token in added if token.special)
        self._shown = {
            token_id: tag
            for tag in _SHOWN_TAGS
            if tag in self._control_tokens and (token_id := tokenizer.token_to_id(tag)) is not None
        }
        self._renderer = PromptRenderer(template, self._control_tokens)
        longest = max((len(token.encode()) for token in tokenizer.get_vocab()), default=1)
        self._bytes_per_token_max = max(longest, PROMPT_BYTES_PER_TOKEN_MAX)
        self.vocabulary_size = tokenizer.get_vocab_size(with_added_tokens=True)

    @classmethod
    def load(cls, model_path: Path, clock: Clock | None = None) -> Self:
        """Read a model folder: tokenizer.json, chat template, end-of-sequence ids.

        A template may ask for today's date (`strftime_now`) only where a clock is given: UTC.

        Raises: StartupError, naming the file.
        """
        file = model_path / "tokenizer.json"
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception for anything wrong
            raise StartupError(f"cannot read the tokenizer {file}: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        settings = _settings(model_path / "tokenizer_config.json")
        return cls(
            tokenizer=tokenizer,
            template=ChatTemplate.load(model_path, settings, clock),
            eos_ids=_eos_ids(model_path, settings, tokenizer),
        )

    def render(
        self,
        messages: Sequence[CanonicalMessage],
        *,
        tools: Sequence[Tool] = (),
        enable_thinking: bool | None = None,
    ) -> Prompt:
        """Apply the chat template; a last turn that is `continued` stays open for the model.

        Raises: UnrenderablePrompt.
        """
        return self._renderer.render(messages, tools, enable_thinking)

    def raw(self, text: str) -> Prompt:
        """Return a prompt that is tokenized as it stands: control tokens may be spelled in it."""
        return Prompt((text,), is_raw=True)

    def tokens_at_least(self, prompt: Prompt) -> int:
        """Return a lower bound of the prompt's tokens from its bytes alone, without tokenizing."""
        return prompt.size_bytes // self._bytes_per_token_max

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the prompt's token ids. Of a long prompt it releases the GIL: call it in a thread.

        The template itself writes the begin-of-sequence token.
        """
        if prompt.is_raw:
            encoded = self._encoded(prompt.pieces, add_special_tokens=True)
            return [token_id for token_ids in encoded for token_id in token_ids]
        return self._encoder.encode(prompt.pieces)

    def decoder(self) -> TokenDecoder:
        """Return a fresh incremental decoder; control tokens release nothing."""
        return _StreamDecoder(self._tokenizer, self._shown)

    def released_by(self, token_ids: Sequence[int]) -> str | None:
        """Return all that a fresh decoder releases over these tokens, or None where only stepping
        tells.

        One decoding is a sixth of the steps. It says the same where each token stands for bytes of
        its own, no character is incomplete or invalid, and no control token shows.
        """
        if not self._is_byte_level or not self._shown.keys().isdisjoint(token_ids):
            return None
        try:
            text = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        except (OverflowError, TypeError):
            return None  # there is an id of no token among them
        return None if _REPLACEMENT in text else text

    @property
    def control_tokens(self) -> frozenset[str]:
        """Texts of the control tokens."""
        return frozenset(self._control_tokens)

    @property
    def template_text(self) -> str:
        """The chat template as it was written."""
        return self._template.source

    def text_of(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, control tokens included."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def token_text(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for, control tokens too; none for no token's id."""
        try:
            spelling = self._tokenizer.id_to_token(token_id)
        except OverflowError:
            return b""
        if spelling is None:
            return b""
        return spelling.encode() if spelling in self._added_texts else self._spelled(spelling)

    def _encoded(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        # Of the library's calls only the batch ones release the GIL.
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]


class _StreamDecoder:
    """Incremental decoding of one choice. Implements `schemas.assembler.TokenDecoder`."""

    __slots__ = ("_shown", "_step", "_tokenizer")

    def __init__(self, tokenizer: tokenizers.Tokenizer, shown: Mapping[int, str]) -> None:
        self._tokenizer = tokenizer
        self._shown = shown
        """Texts of control tokens that release one."""
        self._step = DecodeStream(skip_special_tokens=True).step

    def step(self, token_id: int) -> str:
        """Return the text that this token released."""
        if token_id in self._shown:
            return self._shown[token_id]
        try:
            return self._step(self._tokenizer, token_id) or ""
        except (OverflowError, TypeError):
            return ""  # not the id of any token
        except Exception as error:  # the library raises bare Exception
            if not str(error).startswith(_INVALID_PREFIX):
                raise
            # Invalid UTF-8 may decode to text that shrinks as more comes; the engine's decoder then
            # starts afresh, and so does this one: both see the same text (vllm#17448).
            self._step = DecodeStream(skip_special_tokens=True).step
            return self._step(self._tokenizer, token_id) or ""


def _added(entry: tuple[int, tokenizers.AddedToken]) -> AddedToken:
    token_id, token = entry
    bound = token.lstrip or token.rstrip or token.single_word or token.normalized
    return AddedToken(token_id=token_id, content=token.content, is_plain=not bound)


def _settings(file: Path) -> dict[str, object]:
    """Read a JSON object; an absent file is an empty one."""
    if not file.exists():
        return {}
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StartupError(f"cannot read {file}: {error}") from error
    if not isinstance(settings, dict):
        raise StartupError(f"cannot read {file}: not a JSON object")
    return settings


def _eos_ids(
    model_path: Path, settings: dict[str, object], tokenizer: tokenizers.Tokenizer
) -> frozenset[int]:
    """Return the ids that end a reply, from the first file that names any."""
    for name in ("generation_config.json", "config.json"):
        ids = _settings(model_path / name).get("eos_token_id")
        if isinstance(ids, int):
            return frozenset({ids})
        if isinstance(ids, list) and ids:
            return frozenset(ids)
    eos_token = settings.get("eos_token")
    if isinstance(eos_token, dict):
        eos_token = eos_token.get("content")
    eos_id = tokenizer.token_to_id(eos_token) if isinstance(eos_token, str) else None
    if eos_id is None:
        raise StartupError(f"no end-of-sequence token is named in {model_path}")
    return frozenset({eos_id})
