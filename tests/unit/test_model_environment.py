"""What has to stand in the environment before vLLM loads."""

from pathlib import Path

from engine_workers.engine.environment import VllmSettings, missing_environment

CPU = VllmSettings(model_path=Path("model"))


def test_complete_environment_misses_nothing(tmp_path: Path) -> None:
    """Once what is missing has been set, nothing is missing: a process executes itself once."""
    library = tmp_path / "lib" / "libiomp5.so"
    library.parent.mkdir()
    library.touch()
    environ = {"LD_PRELOAD": "/lib/other.so"}
    missing = missing_environment(CPU, cores=(0, 1), prefix=tmp_path, environ=environ)
    assert missing["LD_PRELOAD"] == f"{library}:/lib/other.so"
    assert missing["OMP_NUM_THREADS"] == "2"
    assert missing["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    environ |= missing
    assert missing_environment(CPU, cores=(0, 1), prefix=tmp_path, environ=environ) == {}


def test_operators_threads_stand(tmp_path: Path) -> None:
    """A thread count that the operator chose is left alone, telemetry is not."""
    environ = {"OMP_NUM_THREADS": "8", "VLLM_NO_USAGE_STATS": "0"}
    missing = missing_environment(CPU, cores=(0, 1), prefix=tmp_path, environ=environ)
    assert "OMP_NUM_THREADS" not in missing
    assert missing["VLLM_NO_USAGE_STATS"] == "1"
    assert "LD_PRELOAD" not in missing


def test_threads_keep_a_core_each(tmp_path: Path) -> None:
    """OpenMP's threads are bound in the order of the cores, unless the operator placed them."""
    missing = missing_environment(CPU, cores=(3, 1), prefix=tmp_path, environ={})
    assert "proclist=[3,1]" in missing["KMP_AFFINITY"]
    assert missing["OMP_NUM_THREADS"] == "2"
    for name in ("KMP_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"):
        missing = missing_environment(CPU, cores=(0, 1), prefix=tmp_path, environ={name: "x"})
        assert "KMP_AFFINITY" not in missing


def test_gpu_has_its_own_process(tmp_path: Path) -> None:
    """On a GPU the engine core runs in a child process by default; OpenMP is left alone."""
    gpu = VllmSettings(model_path=Path("model"), device="cuda", dtype="bfloat16")
    missing = missing_environment(gpu, cores=(0, 1), prefix=tmp_path, environ={})
    assert missing["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"
    assert "OMP_NUM_THREADS" not in missing
    within = VllmSettings(model_path=Path("model"), device="cuda", own_process=False)
    assert not within.in_own_process


def test_nothing_is_compiled_on_a_cpu(tmp_path: Path) -> None:
    """A user's machine needs no C++ compiler; on a GPU vLLM compiles as it likes."""
    cpu = missing_environment(CPU, cores=(0, 1), prefix=tmp_path, environ={})
    gpu = VllmSettings(model_path=Path("model"), device="cuda", dtype="bfloat16")
    assert cpu["TORCH_COMPILE_DISABLE"] == "1"
    assert "TORCH_COMPILE_DISABLE" not in missing_environment(
        gpu, cores=(0, 1), prefix=tmp_path, environ={}
    )


def test_step_tokens_by_dtype() -> None:
    """A step computes fewer tokens in float32, and what is set wins."""
    fast = VllmSettings(model_path=Path("model"), dtype="bfloat16")
    chosen = VllmSettings(model_path=Path("model"), step_tokens_max=64)
    assert CPU.step_tokens < fast.step_tokens
    assert chosen.step_tokens == 64
