"""What runs inside vLLM's worker: random draws that survive a chunked prefill on the CPU.

When a chunk does not finish a seeded request's prompt, vLLM takes the chunk's draw back with
`generator.set_offset(generator.get_offset() - 4)`. Torch's CPU generators have no offset: stock
vLLM raises there and every request of the engine is lost. Here the position of a CPU generator is
counted by the request's output tokens, one draw each. Loaded by `worker_extension_cls`.
"""

from typing import Any

import torch
from vllm.v1.worker import gpu_model_runner


class OutputCountedGenerator(torch.Generator):  # type: ignore[misc] # torch: no types here
    """A CPU generator whose position follows from the number of output tokens.

    vLLM's CPU sampler (`TopKTopPSampler.forward_cpu`) draws one 31-bit integer a token.
    """

    output_token_ids: list[int]

    def get_offset(self) -> int:
        """Return a stand-in; `set_offset` does not need it."""
        return 0

    def set_offset(self, _offset: int) -> None:
        """Go back to where the request's output tokens say, whatever was drawn since."""
        self.manual_seed(self.initial_seed())
        for _ in self.output_token_ids:
            torch.randint(0, 2**31, (1,), generator=self, dtype=torch.long)


class CountedRequestState(gpu_model_runner.CachedRequestState):  # type: ignore[misc] # vllm: no types
    """vLLM's per-request state, with a generator that can take a draw back."""

    generator: Any
    output_token_ids: list[int]

    def __post_init__(self) -> None:
        if self.generator is not None and self.generator.device.type == "cpu":
            seed = self.generator.initial_seed()
            self.generator = OutputCountedGenerator()
            self.generator.manual_seed(seed)
            self.generator.output_token_ids = self.output_token_ids
        super().__post_init__()


class CountedDrawsExtension:
    """Mixed into vLLM's worker class; loading this module puts the state above into its runner."""


gpu_model_runner.CachedRequestState = CountedRequestState
