"""The engine contract on the scripted engine."""

from collections.abc import Callable, Sequence

import pytest

from engine_workers.engine.port import Engine
from engine_workers.engine.script import Script
from engine_workers.engine.scripted_engine import Model, ScriptedEngine
from tests.contract.engine_suite import EngineSuite

EOS_ID = 2


class NumberDecoder:
    """Shows each token as its number in brackets."""

    def step(self, token_id: int) -> str:
        """Return the token's text."""
        return f"<{token_id}>"


@pytest.fixture(scope="module")
def engine() -> Engine:
    """One engine for all tests."""
    return ScriptedEngine(
        Script(vocab_size=49_152, eos_id=EOS_ID, lowest_token_id=17, end_one_in=16),
        Model(prefill_tokens_per_s=250.0, step_s=0.01),
        decode=NumberDecoder,
    )


@pytest.fixture
def text_of() -> Callable[[Sequence[int]], str]:
    """Show tokens as the stop strings see them."""
    return lambda token_ids: "".join(f"<{token_id}>" for token_id in token_ids)


@pytest.fixture
def ending_prompt() -> list[int]:
    """Any prompt ends soon under this script."""
    return [5, 6, 7]


@pytest.fixture
def eos_id() -> int:
    """The script's end token."""
    return EOS_ID


class TestScriptedEngine(EngineSuite):
    """The suite, with a script that ends runs often and a prefill rate that cuts prompts."""
