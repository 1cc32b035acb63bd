"""A rank without peers: ends the threads that vLLM's process groups keep for talking to some.

vLLM makes a dozen gloo groups also for one process, and each has a thread that wakes 100 times a
second for as long as the group lives. Under a model on a few cores every wake takes a core from
OpenMP in the middle of a step. Alone, vLLM calls none of the groups after it has loaded. Owns
nothing else; called inside vLLM's worker (`vllm_worker`).
"""

import torch.distributed
from vllm.distributed import parallel_state

__all__ = ["end_groups"]


def end_groups() -> bool:
    """End all process groups of a rank that is alone; tell whether it was.

    What vLLM's own teardown does later finds them gone and passes over them.
    """
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() != 1:
        return False
    for found in parallel_state._groups.values():
        coordinator = found()
        if coordinator is not None:
            _forget(coordinator)
    torch.distributed.destroy_process_group()
    return True


def _forget(coordinator: parallel_state.GroupCoordinator) -> None:
    """Drop every reference to a coordinator's groups: a group's thread ends with the last one."""
    for owner in (coordinator, coordinator.device_communicator):
        for name in ("device_group", "cpu_group"):
            if owner is not None and hasattr(owner, name):
                delattr(owner, name)
