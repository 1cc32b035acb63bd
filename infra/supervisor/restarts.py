"""When to start a process again after it ended: back-off and the limit on restarts.

Pure: takes the past and the time, returns what to do. Called by `infra/supervisor/keeper.py`.
"""

from dataclasses import dataclass

from schemas import limits

__all__ = ["Restarts", "after_exit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """What one process's exits so far mean for its next start."""

    total: int = 0
    """Restarts ever, as shown to operators."""
    in_a_row: int = 0
    """Exits since it last ran for a while."""
    recent_s: tuple[float, ...] = ()
    """When it ended within the last window, on the monotonic clock."""


def after_exit(state: Restarts, now_s: float, ran_s: float) -> tuple[Restarts, float | None]:
    """Return the state after an exit and the pause before the next start, or None to give up.

    Args: `ran_s` is how long it had run. A process that ran well starts again at once; one that
    keeps ending waits twice as long each time, and is given up when it ends too often.
    """
    window_start_s = now_s - limits.RESTART_WINDOW_S
    recent = (*(moment for moment in state.recent_s if moment > window_start_s), now_s)
    in_a_row = 1 if ran_s >= limits.RESTART_SETTLED_S else state.in_a_row + 1
    after = Restarts(total=state.total + 1, in_a_row=in_a_row, recent_s=recent)
    if len(recent) > limits.RESTARTS_PER_WINDOW_MAX:
        return after, None
    pause_s = limits.RESTART_PAUSE_MIN_S * 2 ** (in_a_row - 1)
    return after, min(pause_s, limits.RESTART_PAUSE_MAX_S)
