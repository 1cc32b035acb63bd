"""Prompts are cut at control tokens and between words only where that changes no token."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from infra.chat_template import ChatTemplate
from infra.prompt_text import Prompt
from infra.prompt_tokens import WHOLE, AddedToken, Cuts, PromptEncoder, cuts_of
from infra.tokenizer import Tokenizer

CONTROL = ("<|im_start|>", "<|im_end|>", "|>x<|", "<|im_end|>x")
TEXTS = [
    *CONTROL,
    *("the ", "quick", " brown", " the", " a", "don't", " naïve", "é x", "é", "e\u0301", "🙂"),
    *("<|im", "_end|>", "42", " ", "  ", "\n", "\r\n", "\t", " 's", "_a", " ١", *"aZ'-.,9"),
]
BYTES = json.dumps({"pre_tokenizer": {"type": "ByteLevel"}})
PLAIN = [AddedToken(token_id=7, content="<a>", is_plain=True)]
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2 = LLAMA_3.replace("{1,3}", "")


def library_tokenizer(
    *, normalized: bool = False, lstrip: bool = False, pattern: str | None = None
) -> tokenizers.Tokenizer:
    """Return a trained byte-level tokenizer whose control tokens overlap in spelling.

    Args: without a pattern, GPT-2's after single digits, as SmolLM2 has it.
    """
    made = tokenizers.Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    before: Any = pre_tokenizers.Digits(individual_digits=True)
    if pattern is not None:
        before = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    made.pre_tokenizer = pre_tokenizers.Sequence([before, to_bytes])
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = ["the quick brown fox", "im_start im_end x", "a the a the naïve's 42"]
    made.train_from_iterator(texts, trainer)
    made.add_special_tokens(
        [tokenizers.AddedToken(text, normalized=normalized, lstrip=lstrip) for text in CONTROL]
    )
    return made


def product(library: tokenizers.Tokenizer) -> Tokenizer:
    """Return the product's tokenizer over the library's."""
    return Tokenizer(tokenizer=library, template=ChatTemplate("", {}), eos_ids=frozenset({0}))


@pytest.mark.parametrize(
    "how",
    [{}, {"normalized": True}, {"lstrip": True}, {"pattern": LLAMA_3}, {"pattern": QWEN_2}],
)
def test_cut_prompts_have_the_librarys_tokens(how: dict[str, Any]) -> None:
    """Any text of control tokens and words gives the ids that the library gives for all of it."""
    library = library_tokenizer(**how)
    tokenizer = product(library)
    draw = random.Random(7)
    for _ in range(500):
        text = "".join(draw.choices(TEXTS, k=draw.randrange(1, 40)))
        whole = library.encode(text, add_special_tokens=False).ids
        for _ in range(2):  # the second time all of it is remembered
            assert tokenizer.encode(Prompt((text,))) == whole
        pieces = ("the <|im_", "end|> quick", text)
        each = [library.encode(piece, add_special_tokens=False).ids for piece in pieces]
        assert tokenizer.encode(Prompt(pieces)) == [token_id for ids in each for token_id in ids]


def recorded(texts: list[str]) -> Callable[[Sequence[str]], list[list[int]]]:
    """Return an encoder of one id per character that notes what it is given."""

    def encode(given: Sequence[str]) -> list[list[int]]:
        texts.extend(given)
        return [[ord(character) for character in text] for text in given]

    return encode


def test_what_was_tokenized_before_is_not_tokenized_again() -> None:
    """The second prompt costs the library its new words, nothing that the template writes."""
    texts: list[str] = []
    encoder = PromptEncoder(recorded(texts), Cuts(control={"<a>": 7}, at_words=True))
    encoder.encode(["<a>be kind to all<a>user: hi there<a>assistant"])
    texts.clear()
    second = "<a>be kind to all<a>user: hi dear there<a>assistant"
    assert len(encoder.encode([second])) == len(second.replace("<a>", "a"))
    assert texts == [" dear"]


def test_long_prompts_go_to_the_library_in_one_call() -> None:
    """A prompt that is made in a thread is one call, in which others have their turn."""
    texts: list[str] = []
    encoder = PromptEncoder(recorded(texts), Cuts(control={"<a>": 7}, at_words=True))
    encoder.encode(["<a>" * 10_000])
    assert texts == ["<a>" * 10_000]


def test_what_is_kept_is_bounded() -> None:
    """Words without end and texts without words do not fill the memory."""
    texts: list[str] = []
    encoder = PromptEncoder(recorded(texts), Cuts(control={"<a>": 7}, at_words=True))
    long = "x" * 10_000
    for text in (*map(str, range(20_000)), long, "0"):
        encoder.encode([f"<a>{text}"])
    texts.clear()
    encoder.encode(["<a>19999<a>0<a>1", long])
    assert texts == ["1", long]  # neither the oldest nor the long one is kept


def test_texts_are_cut_where_pieces_are_tokenized_alone() -> None:
    """Plain tokens over byte-level words separate; what looks at its surroundings does not."""
    assert cuts_of(BYTES, PLAIN) == Cuts(control={"<a>": 7}, at_words=False)
    for tokenizer, at_words in (
        (library_tokenizer(), True),
        (library_tokenizer(pattern=QWEN_2), True),
        (library_tokenizer(pattern=r"\p{L}+ \p{L}+"), False),
    ):
        assert cuts_of(tokenizer.to_str(), PLAIN).at_words is at_words
    prefixed = {"type": "ByteLevel", "use_regex": True, "add_prefix_space": True}
    assert not cuts_of(json.dumps({"pre_tokenizer": prefixed}), PLAIN).at_words
    metaspace = {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "Metaspace"}]}
    assert cuts_of(json.dumps({"pre_tokenizer": metaspace}), PLAIN) == WHOLE
    prepend = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Prepend"}]}
    assert cuts_of(json.dumps({"normalizer": prepend}), PLAIN) == WHOLE
    greedy = AddedToken(token_id=8, content="<b>", is_plain=False)
    assert cuts_of(BYTES, [*PLAIN, greedy]) == WHOLE
