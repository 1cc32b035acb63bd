"""In-memory adapters of the log and the usage store: shipped, and what the simulator runs on."""

from infra.memory.broker import MemoryBroker
from infra.memory.faults import CommitFate, FaultPlan, NoFaults, PollFate, SendFate
from infra.memory.store import InsertFault, MemoryUsageStore

__all__ = [
    "CommitFate",
    "FaultPlan",
    "InsertFault",
    "MemoryBroker",
    "MemoryUsageStore",
    "NoFaults",
    "PollFate",
    "SendFate",
]
