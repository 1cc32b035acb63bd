"""The engine contract on real vLLM with the real model; one engine for all tests."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engine_workers.engine.environment import VllmSettings, missing_environment
from engine_workers.engine.model import model_folder, prepare, read_card
from engine_workers.engine.port import Engine, EngineDead
from schemas.requests import Sampling
from tests.contract.engine_suite import EngineSuite, request, run_all

CACHE = Path(sys.prefix) / "millstream"

pytestmark = [
    pytest.mark.vllm,
    # Torch and vLLM warn about each other's deprecated names while they load.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def settings() -> VllmSettings:
    """Settings of the default engine, with what vLLM reads from the environment set."""
    prepare(CACHE, weights=True, report=print)
    settings = VllmSettings(model_path=model_folder(CACHE))
    cores = len(os.sched_getaffinity(0))
    # This process was not started with Intel's OpenMP; GNU's would spin against other processes.
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ |= missing_environment(
        settings, cores=cores, prefix=Path(sys.prefix), environ=os.environ
    )
    return settings


@pytest.fixture(scope="module")
def engine(settings: VllmSettings) -> Iterator[Engine]:
    """One engine for all tests."""
    from engine_workers.engine.vllm_engine import VllmEngine

    engine = VllmEngine(settings)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def tokenizer(settings: VllmSettings) -> Tokenizer:
    """The model's tokenizer."""
    return Tokenizer.from_file(str(settings.model_path / "tokenizer.json"))


@pytest.fixture
def text_of(tokenizer: Tokenizer) -> Callable[[Sequence[int]], str]:
    """Show tokens as the stop strings see them."""
    return lambda token_ids: tokenizer.decode(list(token_ids), skip_special_tokens=True)


@pytest.fixture
def ending_prompt(tokenizer: Tokenizer) -> list[int]:
    """A question whose answer is one short sentence."""
    return chat(tokenizer, "What is the capital of France? Answer in one sentence.")


@pytest.fixture
def eos_id(settings: VllmSettings) -> int:
    """The model's end token."""
    card = read_card(settings.model_path)
    assert card is not None
    return card.eos_ids[0]


class TestVllmEngine(EngineSuite):
    """The suite on SmolLM2 in float32."""

    def test_answer(
        self,
        engine: Engine,
        ending_prompt: list[int],
        text_of: Callable[[Sequence[int]], str],
    ) -> None:
        """The real model knows the capital of France."""
        (ran,) = run_all(engine, request(ending_prompt, Sampling(max_tokens=40, temperature=0.0)))
        assert "Paris" in text_of(ran.token_ids)


def test_missing_model(settings: VllmSettings, tmp_path: Path) -> None:
    """A folder without a model ends in EngineDead that names it."""
    from engine_workers.engine.vllm_engine import VllmEngine

    with pytest.raises(EngineDead, match="no-model"):
        VllmEngine(VllmSettings(model_path=tmp_path / "no-model"))


def chat(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return one user turn in the model's chat form."""
    turn = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    return list(tokenizer.encode(turn, add_special_tokens=False).ids)
