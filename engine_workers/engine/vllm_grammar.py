"""What runs inside vLLM for grammars: llguidance, fed with our one form of a grammar.

Owns four things that vLLM's own llguidance backend does otherwise. Grammars come in llguidance's
form (`schemas.grammar`), so that vLLM's guesses about their kind, and about what llguidance lacks,
do not matter. They are compiled once, by the scheduler's threads, and copied; vLLM would compile
each twice, once in the thread that steps. One that does not compile fails its request alone. And a
matcher that gives up in the middle fails its request, instead of ending the reply there as if it
were whole. Loaded by `vllm_scheduler` and `vllm_translation`.
"""

import threading
from collections import OrderedDict
from typing import Any

from llguidance import LLMatcher
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.structured_output.backend_guidance import GuidanceBackend, GuidanceGrammar

from infra.guidance import compiled
from schemas import limits

_BACKEND = "guidance"


class GuidedSamplingParams(SamplingParams):  # type: ignore[misc] # vllm: no types
    """vLLM's parameters, whose grammar is judged by its compilation alone."""

    def _validate_structured_outputs(self, *_: Any) -> None:
        """Name the backend, as vLLM's own check does at its end."""
        if self.structured_outputs is not None:
            self.structured_outputs._backend = _BACKEND


def structured_outputs(guidance: str) -> Any:
    """Return vLLM's parameter for a grammar in llguidance's form."""
    return StructuredOutputsParams(grammar=guidance)


class MatchedGrammar(GuidanceGrammar):  # type: ignore[misc] # vllm: no types
    """vLLM's matcher of one run, that does not take its own failure for an end."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Advance; False where the tokens do not fit or the matcher has given up."""
        if self.ll_matcher.is_error():
            return False
        accepted: bool = super().accept_tokens(request_id, tokens)
        return accepted and not self.ll_matcher.is_error()


class GuidedBackend(GuidanceBackend):  # type: ignore[misc] # vllm: no types
    """vLLM's llguidance backend for our one form; keeps compiled grammars."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def compile_grammar(
        self, request_type: Any, grammar_spec: str, stop_token_ids: set[int] | None = None
    ) -> MatchedGrammar:
        """Return a matcher at its beginning. Raises BadGrammar; called by several threads."""
        with self._lock:
            matcher = self._compiled.get(grammar_spec)
        if matcher is None:
            matcher = compiled(self.ll_tokenizer, grammar_spec)
        with self._lock:
            self._compiled[grammar_spec] = matcher
            self._compiled.move_to_end(grammar_spec)
            while len(self._compiled) > limits.ENGINE_GRAMMARS_MAX:
                self._compiled.popitem(last=False)
            fresh = matcher.deep_copy()
        return MatchedGrammar(
            ll_matcher=fresh, ll_tokenizer=self.ll_tokenizer, vocab_size=self.vocab_size
        )
