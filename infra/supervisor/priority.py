"""How much of the processor a process may take beside those that serve.

Owns the decision (`niceness`) and its two levers: nice values, and the weight of the session where
the kernel groups processes by session (autogroup), which outweighs nice values there. Both are
given to a whole session, so that an engine's children load as gently as their worker.
"""

import errno
import os
import resource
from pathlib import Path

__all__ = [
    "GENTLE",
    "GENTLEST",
    "GENTLEST_S",
    "GENTLE_S",
    "NORMAL",
    "may_raise_again",
    "niceness",
    "set_niceness",
]

GENTLEST = 19
GENTLE = 5
"""A third of the weight of a normal one: enough to keep up on a busy machine."""
NORMAL = 0
GENTLEST_S = 4.0
"""How long a restarted process waits for the rest: others take over its work meanwhile."""
GENTLE_S = 30.0
"""After this it takes its full share: on a machine that is always busy it must come back, too."""

_CAP_SYS_NICE = 23  # capabilities(7)
_NICE_RANGE = 20  # RLIMIT_NICE: a soft limit of 20 permits nice 0


def niceness(loading_s: float) -> int:
    """Return the nice value of a restarted process that has been loading for so long."""
    if loading_s >= GENTLE_S:
        return NORMAL
    return GENTLEST if loading_s < GENTLEST_S else GENTLE


def set_niceness(leader_pid: int, value: int) -> bool:
    """Give a session's processes and threads a nice value; return whether it is done.

    None gets more than this process has. Nice values that could not be raised again are left alone:
    that asks for CAP_SYS_NICE or RLIMIT_NICE. A process that has ended counts as done.
    """
    done = _weigh_session(leader_pid, value)
    if may_raise_again():
        try:
            own = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PGRP, leader_pid, max(own, value))
        except ProcessLookupError:
            return True
    return done


def _weigh_session(leader_pid: int, value: int) -> bool:
    """Set the weight of a session's autogroup, sched(7); no effect where there are none."""
    try:
        Path(f"/proc/{leader_pid}/autogroup").write_text(str(value))
    except FileNotFoundError:
        return True  # the kernel has none, or the process is gone
    except OSError as error:
        return error.errno != errno.EAGAIN  # set a moment ago: at most ten times a second
    return True


def may_raise_again() -> bool:
    """Return whether a nice value that was lowered here can be taken back."""
    if resource.getrlimit(resource.RLIMIT_NICE)[0] >= _NICE_RANGE:
        return True
    status = Path("/proc/self/status").read_text()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> _CAP_SYS_NICE & 1)
