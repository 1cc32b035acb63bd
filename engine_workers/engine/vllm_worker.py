"""What runs inside vLLM's worker: output of an earlier attempt, and draws that can be counted.

Owns two things about vLLM's per-request state. Carried tokens are its first output tokens, so that
penalties and the like see them. And the position of a CPU generator is counted by output tokens,
one draw each: a continued run draws on where the earlier attempt stopped, and the draw of a chunk
that does not finish a prompt can be taken back. (vLLM does that by `generator.set_offset(
generator.get_offset() - 4)`; torch's CPU generators have no offset, so stock vLLM raises there and
every request of the engine is lost.) Loaded by `worker_extension_cls`.
"""

from typing import Any

import torch
from vllm.v1.worker import gpu_model_runner

from engine_workers.engine import lone_rank
from engine_workers.engine.carried_tokens import carried_by
from engine_workers.engine.parentage import die_with_parent


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
    """vLLM's per-request state, which may begin after carried tokens and take a draw back."""

    generator: Any
    output_token_ids: list[int]
    sampling_params: Any

    def __post_init__(self) -> None:
        self.output_token_ids.extend(carried_by(self.sampling_params))
        if self.generator is not None and self.generator.device.type == "cpu":
            seed = self.generator.initial_seed()
            self.generator = OutputCountedGenerator()
            self.generator.manual_seed(seed)
            self.generator.output_token_ids = self.output_token_ids
            self.generator.set_offset(0)
        super().__post_init__()


class CountedDrawsExtension:
    """Mixed into vLLM's worker class; loading this module puts the state above into its runner."""

    model_runner: Any

    def continues_runs(self) -> bool:
        """Tell whether runs of this worker can begin after carried tokens.

        Only where the runner makes the state above, and draws by the CPU's generators: on a GPU
        the position of a generator follows from other things than the number of tokens.
        """
        return (
            isinstance(self.model_runner, gpu_model_runner.GPUModelRunner)
            and self.model_runner.device.type == "cpu"
            and gpu_model_runner.CachedRequestState is CountedRequestState
        )

    def end_groups(self) -> bool:
        """End the process groups of a worker that is alone (see `lone_rank`); tell whether it is.

        Call once the model is loaded: loading uses them.
        """
        return lone_rank.end_groups()


gpu_model_runner.CachedRequestState = CountedRequestState
die_with_parent()
