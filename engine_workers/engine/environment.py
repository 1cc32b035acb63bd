"""The environment that must stand before a process with vLLM in it starts.

Owns which variables vLLM, OpenMP and the Hugging Face libraries read at load time, and their
values. Does not set them: `engine_workers.__main__` executes itself again with them, because
LD_PRELOAD and OpenMP's own variables take effect only at the start of a process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Device = Literal["cpu", "cuda"]
Dtype = Literal["float32", "bfloat16"]

_PLACES = {"KMP_AFFINITY", "GOMP_CPU_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES"}
"""Where an operator has set one of these, threads are placed as it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """What one vLLM engine is made of."""

    model_path: Path
    device: Device = "cpu"
    dtype: Dtype = "float32"
    """float32 keeps a reply equal whether its prompt came from the prefix cache or not."""
    context_tokens: int = 4_096
    runs_max: int = 64
    step_tokens_max: int | None = None
    """Tokens of one step, prefill included; None = `step_tokens`."""
    block_tokens: int = 32
    """Tokens of a KV block; prefix hits come in these. The CPU kernels want multiples of 32."""
    kv_cache_bytes: int = 1 << 30
    """On the CPU; a GPU takes its share of `gpu_memory_share` instead."""
    gpu_memory_share: float = 0.9
    own_process: bool | None = None
    """True: the engine core runs in a child process. None: only on a GPU (on the CPU it costs)."""

    @property
    def step_tokens(self) -> int:
        """Return how many tokens a step computes at most, so that it stays below 0.5 s.

        Measured on two CPU cores with AMX and a full context: 128 tokens take 0.29 s in float32,
        192 take 0.14 s in bfloat16. A GPU is far from the bound.
        """
        if self.step_tokens_max is not None:
            return self.step_tokens_max
        if self.device != "cpu":
            return 4_096
        return 128 if self.dtype == "float32" else 192

    @property
    def in_own_process(self) -> bool:
        """Tell whether the engine core runs in a child process."""
        return self.device != "cpu" if self.own_process is None else self.own_process


def missing_environment(
    settings: VllmSettings, *, cores: Sequence[int], prefix: Path, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return what has to be set before the process starts; empty where all of it stands.

    Thread counts and the like that the operator has set already are left alone.

    Args:
        cores: Numbers of the cores, one for each of torch's threads; the first is the main
            thread's.
        prefix: The virtual environment (`sys.prefix`), for Intel's OpenMP library.
        environ: The environment as it is.
    """
    wanted = _fixed(settings)
    if settings.device == "cpu":
        defaults = {"OMP_NUM_THREADS": str(len(cores)), "KMP_BLOCKTIME": "1"}
        if not environ.keys() & _PLACES:
            defaults["KMP_AFFINITY"] = _places(cores)
        wanted |= {name: value for name, value in defaults.items() if name not in environ}
        wanted |= _openmp_preload(prefix, environ)
    return {name: value for name, value in wanted.items() if environ.get(name) != value}


def _fixed(settings: VllmSettings) -> dict[str, str]:
    own_process = "1" if settings.in_own_process else "0"
    variables = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": own_process,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",  # its threads would fight torch's
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_LOGGING_COLOR": "0",
    }
    if settings.device == "cpu":
        # Binding threads to cores starves the process's own event loop thread on small machines.
        variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        # vLLM compiles two small functions (log probabilities, random draws) at their first use:
        # that takes a C++ compiler, which a machine need not have, and stalls a step for seconds.
        variables["TORCH_COMPILE_DISABLE"] = "1"
    return variables


def _places(cores: Sequence[int]) -> str:
    """Bind OpenMP's threads to a core each, for Intel's library; GNU's does not read it.

    Unbound, a helper that wakes while another process has its core joins the main thread on the
    other one, and both wait for each other until the kernel moves one of them. The main thread is
    set free again once the engine is loaded (`engine_choice.make_engine`).
    """
    return f"granularity=fine,proclist=[{','.join(map(str, cores))}],explicit"


def _openmp_preload(prefix: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Preload Intel's OpenMP where it is installed: 1.1 times the tokens/s of GNU's here."""
    library = prefix / "lib" / "libiomp5.so"
    loaded = environ.get("LD_PRELOAD", "")
    if str(library) in loaded.split(":") or not library.is_file():
        return {}
    return {"LD_PRELOAD": f"{library}:{loaded}" if loaded else str(library)}
