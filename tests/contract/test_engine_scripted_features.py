"""The contract of sampling features on the scripted engine, over the real model's vocabulary."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from engine_workers.engine.model import model_folder, prepare
from engine_workers.engine.port import Engine
from engine_workers.engine.script import Script
from engine_workers.engine.scripted_engine import ScriptedEngine
from infra.guidance import Guidance
from infra.tokenizer import Tokenizer
from tests.contract.engine_feature_suite import EngineFeatureSuite
from tests.contract.engine_resume_suite import Forget

CACHE = Path(sys.prefix) / "millstream"
SCRIPT = Script(vocab_size=49_152, eos_id=2, lowest_token_id=17, end_one_in=0)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """The model's tokenizer."""
    prepare(CACHE, weights=False, report=print)
    return Tokenizer.load(model_folder(CACHE))


@pytest.fixture(scope="module")
def language(tokenizer: Tokenizer) -> Guidance:
    """The model's vocabulary."""
    return Guidance.load(model_folder(CACHE), vocab_size=SCRIPT.vocab_size, eos_id=SCRIPT.eos_id)


@pytest.fixture(scope="module")
def engine(tokenizer: Tokenizer, language: Guidance) -> Engine:
    """One engine for all tests."""
    return ScriptedEngine(SCRIPT, decode=tokenizer.decoder, guidance=lambda: language)


@pytest.fixture
def text_of(tokenizer: Tokenizer) -> Callable[[Sequence[int]], str]:
    """Show tokens as the stop strings see them."""

    def text(token_ids: Sequence[int]) -> str:
        return "".join(map(tokenizer.decoder().step, token_ids))

    return text


@pytest.fixture
def forget_prefixes() -> Forget:
    """A script makes the same tokens from a cold cache."""
    return lambda: None


class TestScriptedEngineFeatures(EngineFeatureSuite):
    """The suite; whatever is not constrained is drawn as by the plain script."""
