"""Child processes of an engine end with the worker that made them, however it ended.

Owns the request to the kernel. Called where vLLM loads our code in a process of its own: without a
parent nobody would ever step that engine again, and its memory would be lost to the next one.
"""

import ctypes
import multiprocessing
import os
import signal

__all__ = ["die_with_parent"]

_PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_parent() -> None:
    """Be killed when the parent dies; no effect in a process that `multiprocessing` did not make.

    The kernel means the parent's thread: an engine is made in a worker's main thread, which ends
    last.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent.pid:
        os._exit(1)  # it died before the kernel was asked
