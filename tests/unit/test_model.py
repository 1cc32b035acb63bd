"""Model preparation: the tokenizer stage, its card, and two processes at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engine_workers.engine.model import CARD_FILE, model_folder, prepare, read_card


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which two processes have prepared the tokenizer at once."""
    cache = tmp_path_factory.mktemp("cache")
    command = [sys.executable, "-m", "engine_workers.engine.model"]
    command += ["--cache", str(cache), "--tokenizer-only"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    # One made it and said so, the other waited and found it made.
    assert sorted(text.count("is ready in") for text in printed) == [0, 1]
    return cache


def test_card(cache: Path) -> None:
    """The card tells context, vocabulary, end token and a version; no weights yet."""
    card = read_card(model_folder(cache))
    assert card is not None
    assert (card.context_tokens, card.vocab_size, card.eos_ids) == (4_096, 49_152, (2,))
    assert card.lowest_text_token_id == 17
    assert len(card.model_version) == 12
    assert card.weights_bytes == 0


def test_second_time_is_free(cache: Path) -> None:
    """A complete folder is taken as it is, without a word."""
    said: list[str] = []
    assert prepare(cache, weights=False, report=said.append) == read_card(model_folder(cache))
    assert said == []


def test_tokenizer(cache: Path) -> None:
    """Special tokens are one id each, digits stand alone, and text comes back as it went in."""
    tokenizer = Tokenizer.from_file(str(model_folder(cache) / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n").ids == [1, 4093, 198, 6004, 2, 198]
    text = "In 1999 there were 12345 cats’ Ünï 🐨\n\n x = 3.14"
    encoded = tokenizer.encode(text)
    assert all(sum(map(str.isdigit, token)) <= 1 for token in encoded.tokens)
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == text


def test_nothing_half_is_left(cache: Path) -> None:
    """Only finished files stand in the folder."""
    names = {path.name for path in model_folder(cache).iterdir()}
    assert not [name for name in names if "partial" in name]
    assert {"tokenizer.json", "chat_template.jinja", "config.json", CARD_FILE} <= names


def test_damage_is_mended(cache: Path) -> None:
    """A card of another format, or none, makes the folder be prepared again to the same version."""
    folder = model_folder(cache)
    before = read_card(folder)
    fields = json.loads((folder / CARD_FILE).read_text())
    (folder / CARD_FILE).write_text(json.dumps(fields | {"format": 0}))
    assert read_card(folder) is None
    assert prepare(cache, weights=False, report=lambda _line: None) == before
