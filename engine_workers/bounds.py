"""How much one worker may hold, all following from how many requests it may have in flight.

Owns the relations; the defaults are those of `schemas.limits`. Made by the composition root.
"""

from dataclasses import dataclass

from schemas import limits

__all__ = ["WorkerBounds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBounds:
    """Bounds of one worker."""

    inflight: int = limits.WORKER_INFLIGHT_MAX
    """Requests taken from the lanes and not finished."""

    @property
    def lane_span(self) -> int:
        """Unfinished offsets of one lane: all in flight may stand in one lane."""
        return max(limits.LANE_UNFINISHED_SPAN_MAX, self.inflight)

    @property
    def ended_ids(self) -> int:
        """Ended replies that the tail remembers: all that may be delivered again."""
        return max(limits.TAIL_ENDED_IDS_MAX, limits.LANES * self.lane_span)

    @property
    def usage_together(self) -> int:
        """Usage events that are sent without waiting for more: each holds its request's place."""
        return max(1, self.inflight // 4)

    @property
    def commands(self) -> int:
        """Commands that wait for the engine: each in flight may be started, aborted and started,
        with all its choices."""
        return max(limits.ENGINE_COMMANDS_MAX, 4 * self.inflight * limits.REPLY_CHOICES_MAX)


assert WorkerBounds().lane_span == limits.LANE_UNFINISHED_SPAN_MAX
assert WorkerBounds().ended_ids == limits.TAIL_ENDED_IDS_MAX
