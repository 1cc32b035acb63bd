"""The engine contract on real vLLM with the real model; one engine for all tests."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer

from engine_workers.engine.environment import VllmSettings, missing_environment
from engine_workers.engine.model import model_folder, prepare, read_card
from engine_workers.engine.port import Engine, EngineDead
from infra.guidance import Guidance
from schemas.replies import Stop, StopReason
from schemas.requests import Sampling
from tests.contract.engine_feature_suite import EngineFeatureSuite
from tests.contract.engine_resume_suite import Cuts, EngineResumeSuite, Forget, again, check_cuts
from tests.contract.engine_suite import EngineSuite, request, run_all

if TYPE_CHECKING:
    from engine_workers.engine.vllm_engine import VllmEngine

SOAK = os.environ.get("MILLSTREAM_SOAK") == "1"
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "age", "wild"],
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "wild": {"type": "boolean"},
    },
}
GRAMMAR = json.dumps({"json_schema": SCHEMA})
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
    cores = sorted(os.sched_getaffinity(0))
    # This process was not started with Intel's OpenMP; GNU's would spin against other processes.
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ |= missing_environment(
        settings, cores=cores, prefix=Path(sys.prefix), environ=os.environ
    )
    return settings


@pytest.fixture(scope="module")
def engine(settings: VllmSettings) -> Iterator["VllmEngine"]:
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


@pytest.fixture(scope="module")
def eos_id(settings: VllmSettings) -> int:
    """The model's end token."""
    card = read_card(settings.model_path)
    assert card is not None
    return card.eos_ids[0]


@pytest.fixture
def cuts() -> Cuts:
    """Cut at the first token, in the middle and before the last; in the long form everywhere."""
    return lambda whole: range(1, whole) if SOAK else sorted({1, whole // 2, whole - 1} - {0})


@pytest.fixture
def forget_prefixes(engine: "VllmEngine") -> Forget:
    """Empty the prefix cache, so that a continuation is computed as by another engine."""
    return engine.forget_prefixes


class TestVllmEngineFeatures(EngineFeatureSuite):
    """The suite on every sampling feature."""

    @pytest.fixture(scope="class")
    def language(self, settings: VllmSettings, eos_id: int) -> Guidance:
        """The model's vocabulary."""
        return Guidance.load(settings.model_path, vocab_size=49_152, eos_id=eos_id)


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


class TestVllmEngineResumed(EngineResumeSuite):
    """The suite on continued replies; more of what only a real model has."""

    @pytest.mark.parametrize(
        "sampling",
        [
            Sampling(max_tokens=80, temperature=0.0),
            Sampling(max_tokens=80, temperature=1.0, presence_penalty=0.5),
        ],
        ids=["greedy", "seeded"],
    )
    def test_continued_json(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        text_of: Callable[[Sequence[int]], str],
        cuts: Cuts,
        sampling: Sampling,
    ) -> None:
        """Under a JSON schema a continued reply is the undisturbed one, and obeys the schema."""
        prompt = chat(tokenizer, "Describe a cat as JSON: name, age, wild.")
        original = replace(request(prompt, sampling, seed=5), grammar=GRAMMAR)
        free = check_cuts(engine, original, cuts)
        assert free.stop == Stop(reason=StopReason.END)
        assert set(json.loads(text_of(free.token_ids))) == {"name", "age", "wild"}

    def test_a_character_over_the_cut(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        text_of: Callable[[Sequence[int]], str],
    ) -> None:
        """A stop string is found where the cut divides one of its characters."""
        schema = {"type": "string", "pattern": "^漢字🐨🦘かな$"}
        prompt = chat(tokenizer, "Answer in Japanese.")
        sampling = Sampling(max_tokens=40, temperature=0.0, stop=("🐨🦘",))
        original = replace(request(prompt, sampling), grammar=json.dumps({"json_schema": schema}))
        (free,) = run_all(engine, again(original))
        size = len(free.token_ids)
        divided = [cut for cut in range(1, size) if text_of(free.token_ids[:cut])[-1] == "\ufffd"]
        assert len(divided) > 4
        ran = check_cuts(engine, original, lambda whole: divided if SOAK else divided[-3:])
        assert ran.stop == Stop(reason=StopReason.STOP_SEQUENCE, stop_sequence="🐨🦘")

    def test_grammar_refuses_emitted(self, engine: Engine, tokenizer: Tokenizer) -> None:
        """Where the grammar refuses what was emitted, that run ends as refused, others go on."""
        prompt = chat(tokenizer, "Describe a cat.")
        sampling = Sampling(max_tokens=4, temperature=0.0)
        refused = replace(request(prompt, sampling), grammar=GRAMMAR)
        other = request(prompt, sampling)
        engine.start(refused, prompt[:2])
        engine.start(other, ())
        outputs = []
        while engine.has_work():
            outputs += engine.step()
        (output,) = (output for output in outputs if output.run_id == refused.run_id)
        assert (output.token_ids, output.stop) == ((), None)
        assert output.refused is not None
        assert "grammar" in output.refused
        assert sum(len(o.token_ids) for o in outputs if o.run_id == other.run_id) == 4


def test_no_thread_waits_for_peers(engine: Engine) -> None:
    """A loaded engine that is alone keeps none of the threads that process groups poll with."""
    assert not engine.has_work()  # it is loaded and warm
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    assert not [name for name in names if "gloo" in name]


def test_missing_model(settings: VllmSettings, tmp_path: Path) -> None:
    """A folder without a model ends in EngineDead that names it."""
    from engine_workers.engine.vllm_engine import VllmEngine

    with pytest.raises(EngineDead, match="no-model"):
        VllmEngine(VllmSettings(model_path=tmp_path / "no-model"))


def chat(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return one user turn in the model's chat form."""
    turn = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    return list(tokenizer.encode(turn, add_special_tokens=False).ids)
